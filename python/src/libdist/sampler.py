"""A rank's share of the indices of a data set, epoch by epoch."""

from __future__ import annotations

import ctypes

from . import _abi
from ._library import check, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    from .group import Group


class Sampler:
    """Gives a rank the same indices as PyTorch's DistributedSampler with the same arguments.

        sampler = dist.Sampler(len(data), seed=1)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for index in sampler: ...

    Iteration begins at `position`, and moves it: after a restart from a checkpoint, set
    `position` to the saved value.
    """

    _handle: int = 0

    def __init__(
        self,
        dataset_len: int,
        *,
        group: Group | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if group is None and (replicas is None or rank is None):
            from .process import world

            group = world()
        options = _abi.dist_sampler_options_t(
            struct_size=ctypes.sizeof(_abi.dist_sampler_options_t),
            fields=_abi.DIST_FIELD_RANK if rank is not None else 0,
            num_replicas=replicas or 0,
            rank=rank or 0,
            seed=seed,
            flags=(0 if shuffle else _abi.DIST_SAMPLER_IN_ORDER)
            | (_abi.DIST_SAMPLER_DROP_LAST if drop_last else 0),
        )
        out = ctypes.c_void_p()
        handle = group._handle if group is not None else None
        check(lib.dist_sampler_create(handle, dataset_len, ctypes.byref(options),
                                      ctypes.byref(out)), "Sampler")
        assert out.value is not None
        self._handle = out.value

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch at its first index."""
        check(lib.dist_sampler_set_epoch(self._handle, epoch), "set_epoch")

    def next(self, count: int) -> list[int]:
        """Takes the next indices; fewer than `count` at the end of the epoch, and then none."""
        indices, taken = (ctypes.c_uint64 * count)(), ctypes.c_size_t()
        check(lib.dist_sampler_next(self._handle, indices, count, ctypes.byref(taken)), "next")
        return list(indices[: taken.value])

    def __len__(self) -> int:
        """The number of indices of this rank in an epoch."""
        return lib.dist_sampler_len(self._handle)

    def __iter__(self) -> Iterator[int]:
        while True:
            indices = self.next(1024)
            if not indices:
                return
            start = self.position - len(indices)
            for offset, index in enumerate(indices):
                # The position is that of the program, not that of the block.
                self.position = start + offset + 1
                yield index
            self.position = start + len(indices)

    @property
    def position(self) -> int:
        """The number of indices taken in the epoch, for a checkpoint."""
        return lib.dist_sampler_position(self._handle)

    @position.setter
    def position(self, value: int) -> None:
        check(lib.dist_sampler_seek(self._handle, value), "position")

    def __del__(self, release: Any = lib.dist_sampler_release) -> None:
        if self._handle:
            release(self._handle)
            self._handle = 0
