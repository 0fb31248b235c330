"""Ranks that train on their own between two agreements (local SGD, DiLoCo)."""

from __future__ import annotations

import ctypes

from . import _abi, _buffers
from ._call import blocking, call_status
from ._library import blob_bytes, lib, milliseconds, text
from .reducer import COMMIT, Parameter, array_at, parameter_structs, stats_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence

    from .group import Group


class OuterOptimizer:
    """Lets ranks train on their own for many steps between two agreements.

        outer = dist.OuterOptimizer(world, {"w": weights}, every=100)
        for batch in batches:
            ...                                      # a step of the rank's own optimizer
            outer.step()

    `optimizer` is "nesterov" (the default), "sgd" or "average". Release it before the group.
    """

    _handle: int = 0

    def __init__(
        self,
        group: Group,
        parameters: Sequence[Parameter] | Mapping[str, Any],
        *,
        every: int,
        fragments: int = 1,
        optimizer: str | None = None,
        learning_rate: float = 0.0,
        momentum: float = 0.0,
        timeout: float | None = None,
        hook: str | None = None,
        hook_settings: str | None = None,
        name: str | None = None,
    ) -> None:
        if hasattr(parameters, "items"):
            parameters = [Parameter(key, data) for key, data in parameters.items()]
        self.parameters = list(parameters)
        structs, self._keep = parameter_structs(self.parameters)
        options = _abi.dist_outer_options_t(
            struct_size=ctypes.sizeof(_abi.dist_outer_options_t),
            every=every,
            fragments=fragments,
            optimizer=text(optimizer),
            learning_rate=learning_rate,
            momentum=momentum,
            timeout_ms=milliseconds(timeout),
            hook=text(hook),
            hook_settings=text(hook_settings),
            name=text(name),
        )
        out = ctypes.c_void_p()

        def discard(_status: int, _keep: Any = self._keep) -> None:
            lib.dist_outer_release(out.value)

        blocking("OuterOptimizer", group._handle, lib.dist_outer_create, group._handle, structs,
                 len(self.parameters), ctypes.byref(options), ctypes.byref(out), discard=discard)
        assert out.value is not None
        self._handle = out.value
        self._group = group

    def step(self, vote: int = COMMIT) -> tuple[int | None, int]:
        """Records one training step; the ranks agree on a fragment if one is due.

        Returns the index of the fragment (None if none was due), and the votes of all ranks.
        """
        fragment, votes = ctypes.c_int64(), ctypes.c_uint64()
        blocking("step", self._group._handle, lib.dist_outer_step, self._handle, vote,
                 ctypes.byref(fragment), ctypes.byref(votes))
        return (None if fragment.value < 0 else fragment.value), votes.value

    def values(self, parameter: int) -> tuple[Any, Any]:
        """Returns the global values of a parameter, and the optimizer's state or None."""
        values, state, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        status = lib.dist_outer_values(self._handle, parameter, ctypes.byref(values),
                                       ctypes.byref(state), ctypes.byref(count))
        call_status("values", None, status)
        shape = (count.value,)
        return (
            array_at(values.value, shape, _abi.DIST_F32, self),
            array_at(state.value, shape, _abi.DIST_F32, self) if state.value else None,
        )

    def regroup(self, group: Group) -> None:
        """Continues in another group, for instance in the result of `shrink`."""
        blocking("regroup", group._handle, lib.dist_outer_regroup, self._handle, group._handle)
        self._group = group

    def save(self) -> bytes:
        """Returns the global values and the states, for a checkpoint; the same on all ranks."""
        out = ctypes.c_void_p()
        call_status("save", None, lib.dist_outer_save(self._handle, ctypes.byref(out)))
        return blob_bytes(out.value)

    def load(self, data: bytes = b"", *, root: int = 0) -> None:
        """Loads the result of `save` from the root to all ranks."""
        address, length, keep = _buffers.bytes_buffer(data)
        blocking("load", None, lib.dist_outer_load, self._handle, address, length, root)
        del keep

    @property
    def stats(self) -> dict[str, int]:
        """Figures since the creation."""
        return stats_of(self._handle, _abi.dist_outer_stats_t, lib.dist_outer_stats)

    def release(self) -> None:
        """Releases the outer optimizer, its global values and its states."""
        handle, self._handle = self._handle, 0
        if handle:
            blocking("release", None, lib.dist_outer_release, handle)

    def __enter__(self) -> OuterOptimizer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def __del__(self, release: Any = lib.dist_outer_release) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            release(handle)
