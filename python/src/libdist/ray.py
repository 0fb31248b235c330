"""The back end LIBDIST of Ray's collective library (`ray.util.collective`).

    import libdist.ray
    import ray
    from ray.util import collective

    ray.init(runtime_env={"worker_process_setup_hook": libdist.ray.register})
    libdist.ray.register()          # also in the driver
    ...
    collective.create_collective_group(actors, 2, [0, 1], backend="libdist")

The tensors are arrays of numpy, torch and cupy. They are reduced in place, without torch. If an
actor dies, the calls of the others raise `libdist.PeerFailed`.
"""

from __future__ import annotations

import json
import secrets
import time

from ray.experimental import internal_kv
from ray.util import get_node_ip_address
from ray.util.collective import backend_registry
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp

from . import _abi
from .errors import ConnectionFailed, Timeout
from .group import Group
from .store import TcpStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

NAME = "LIBDIST"

_OPERATORS = {
    ReduceOp.SUM: _abi.DIST_SUM,
    ReduceOp.PRODUCT: _abi.DIST_PRODUCT,
    ReduceOp.MIN: _abi.DIST_MIN,
    ReduceOp.MAX: _abi.DIST_MAX,
}

# The ranks have this time to meet, in seconds.
_MEETING = 60.0
_POLL = 0.02


def register() -> None:
    """Registers the back end in this process: the driver, or a worker. Later calls do nothing."""
    registry = backend_registry._global_registry
    if not registry.is_registered(NAME):
        backend_registry.register_collective_backend(NAME, LibdistGroup)


class LibdistGroup(BaseGroup):
    """One rank of a group. Ray makes it at the first call of an actor."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._key = f"libdist_collective_group_{group_name}"
        # Rank 0 serves the store as long as the group exists.
        self._store, self._group = self._lead() if rank == 0 else self._join()

    def _lead(self) -> tuple[TcpStore, Group]:
        address, secret = get_node_ip_address(), secrets.token_hex(32)
        store = TcpStore(address, 0, is_server=True, wait_for_workers=False,
                         secret=bytes.fromhex(secret))
        try:
            # Ray's own table tells the other actors where the store is.
            internal_kv._internal_kv_put(
                self._key, json.dumps([address, store.port, secret]), overwrite=True)
            try:
                return store, self._meet(store, _MEETING)
            finally:
                internal_kv._internal_kv_del(self._key)
        except BaseException:
            store.release()
            raise

    def _join(self) -> tuple[TcpStore, Group]:
        end = time.monotonic() + _MEETING
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise Timeout(f"collective group {self._group_name!r}: rank 0 has not created it "
                              f"within {_MEETING:.0f} s", operation="create")
            found = internal_kv._internal_kv_get(self._key)
            if found:
                address, port, secret = json.loads(found)
                try:
                    store = TcpStore(address, port, wait_for_workers=False, timeout=left,
                                     secret=bytes.fromhex(secret))
                except ConnectionFailed:
                    # An earlier rank 0 died while the ranks met.
                    time.sleep(_POLL)
                    continue
                try:
                    return store, self._meet(store, left)
                except BaseException:
                    store.release()
                    raise
            time.sleep(_POLL)

    def _meet(self, store: TcpStore, timeout: float) -> Group:
        return Group.create(store, self._rank, self._world_size, self._group_name,
                            connect_timeout=timeout)

    def destroy_group(self) -> None:
        """Leaves the group."""
        self._group.release()
        self._store.release()

    @classmethod
    def backend(cls) -> str:
        """Returns the name of the back end."""
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Returns true: the package contains the library."""
        return True

    # The operations. Ray passes each tensor in a list, and all arguments behind it in options.

    def allreduce(self, tensor: list[Any], allreduce_options: Any = None) -> None:
        """Reduces the tensors of all ranks, in place."""
        self._group.all_reduce(_only(tensor), _operator(allreduce_options))

    def barrier(self, barrier_options: Any = None) -> None:
        """Waits for all ranks."""
        self._group.barrier()

    def reduce(self, tensor: list[Any], reduce_options: Any = None) -> None:
        """Reduces the tensors of all ranks in place on the root; other tensors do not change."""
        self._group.reduce(_only(tensor), _operator(reduce_options),
                           root=getattr(reduce_options, "root_rank", 0))

    def broadcast(self, tensor: list[Any], broadcast_options: Any = None) -> None:
        """Copies the tensor of the root to all ranks."""
        self._group.broadcast(_only(tensor), root=getattr(broadcast_options, "root_rank", 0))

    def allgather(self, tensor_list: list[list[Any]], tensor: list[Any],
                  allgather_options: Any = None) -> None:
        """Gives every rank the tensors of all ranks."""
        tensors = _only(tensor_list)
        self._group.all_gather_v(_only(tensor), _counts(tensors), out=tensors)

    def reducescatter(self, tensor: list[Any], tensor_list: list[list[Any]],
                      reducescatter_options: Any = None) -> None:
        """Reduces one tensor for each rank."""
        self._group.reduce_scatter_v(_only(tensor_list), _operator(reducescatter_options),
                                     out=_only(tensor))

    def send(self, tensor: list[Any], send_options: Any) -> None:
        """Sends a tensor to a rank."""
        self._group.send(_only(tensor), send_options.dst_rank)

    def recv(self, tensor: list[Any], recv_options: Any) -> None:
        """Receives a tensor from a rank."""
        self._group.recv(_only(tensor), recv_options.src_rank)


def _only(tensors: Sequence[Any]) -> Any:
    """Returns the tensor of this process; one process with several GPUs is not supported."""
    if len(tensors) != 1:
        raise ValueError(f"the back end {NAME} takes one tensor per process, not {len(tensors)}")
    return tensors[0]


def _operator(options: Any) -> int:
    return _OPERATORS[getattr(options, "reduceOp", ReduceOp.SUM)]


def _counts(tensors: Sequence[Any]) -> list[int]:
    from . import _buffers

    return [_buffers.read(it, "tensor_list").count for it in tensors]
