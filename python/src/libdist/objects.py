"""Collectives and messages on objects of Python, through pickle.

    from libdist import objects

    names = objects.all_gather(world, {"rank": world.rank})

Nothing else in the package uses pickle for data of other ranks. A process that unpickles data runs
the code that the data names: use these functions only between ranks that trust each other, and
protect the job with its secret (docs/python.md).
"""

from __future__ import annotations

import pickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

    from .group import Group


def _pack(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def broadcast(group: Group, value: Any = None, *, root: int = 0, **options: Any) -> Any:
    """Gives every rank the root's object; the root gets its own object back."""
    if group.rank == root:
        group.broadcast_bytes(_pack(value), root=root, **options)
        return value
    return pickle.loads(group.broadcast_bytes(root=root, **options))


def all_gather(group: Group, value: Any, **options: Any) -> list[Any]:
    """Gives every rank a list of the objects of all ranks."""
    return [pickle.loads(it) for it in group.all_gather_bytes(_pack(value), **options)]


def gather(group: Group, value: Any, *, root: int = 0, **options: Any) -> list[Any] | None:
    """Gives the root a list of the objects of all ranks; other ranks return None."""
    strings = group.gather_bytes(_pack(value), root=root, **options)
    return None if strings is None else [pickle.loads(it) for it in strings]


def scatter(group: Group, values: Sequence[Any] | None = None, *, root: int = 0,
            **options: Any) -> Any:
    """Gives each rank its object of the root's list."""
    packed = [_pack(it) for it in values] if group.rank == root and values is not None else None
    return pickle.loads(group.scatter_bytes(packed, root=root, **options))


def send(group: Group, value: Any, peer: int, tag: int = 0, **options: Any) -> None:
    """Sends an object to a rank."""
    group.send_bytes(_pack(value), peer, tag, **options)


def recv(group: Group, peer: int = -1, tag: int = -1, **options: Any) -> Any:
    """Receives an object from a rank, or from any rank."""
    return pickle.loads(group.recv_bytes(peer, tag, **options))
