"""The state of an optimizer, split over the ranks of a reducer (ZeRO-1 and ZeRO-2)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from . import _abi, _buffers, _dtypes
from ._call import blocking, call_status
from ._library import blob_bytes, c_array, lib, milliseconds
from .reducer import Reducer, array_at
from .work import Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence


class Range(NamedTuple):
    """Elements of one parameter that this rank updates.

    `data` and `grad` are numpy arrays over their values and their reduced gradients. `offset` is
    the place of the first element in the array of each state.
    """

    parameter: int
    begin: int
    count: int  # type: ignore[assignment]
    bucket: int
    offset: int
    data: Any
    grad: Any


class Shard:
    """Splits the state of an optimizer over the ranks of a reducer.

        shard = dist.Shard(reducer, ["momentum"])
        ...                                          # begin, ready, end of the reducer
        momentum = shard.state("momentum")
        for it in shard.ranges():
            m = momentum[it.offset : it.offset + it.count]
            m *= 0.9
            m += it.grad
            it.data -= 0.1 * m
        shard.gather()

    Release the shard before the reducer.
    """

    _handle: int = 0

    def __init__(self, reducer: Reducer, states: Sequence[str] = (), *, copies: int = 1,
                 timeout: float | None = None) -> None:
        names = c_array(ctypes.c_char_p, [it.encode() for it in states])
        options = _abi.dist_shard_options_t(
            struct_size=ctypes.sizeof(_abi.dist_shard_options_t),
            states=ctypes.cast(names, ctypes.POINTER(ctypes.c_char_p)) if states else None,
            n_states=len(states),
            copies=copies,
            timeout_ms=milliseconds(timeout),
        )
        out = ctypes.c_void_p()

        def discard(_status: int, _keep: Any = names) -> None:
            lib.dist_shard_release(out.value)

        blocking("Shard", reducer._group._handle, lib.dist_shard_create, reducer._handle,
                 ctypes.byref(options), ctypes.byref(out), discard=discard)
        assert out.value is not None
        self._handle = out.value
        self._reducer = reducer
        self._states = list(states)

    def ranges(self) -> list[Range]:
        """Returns the elements that this rank updates."""
        count = ctypes.c_size_t()
        call_status("ranges", None,
                    lib.dist_shard_ranges(self._handle, None, 0, ctypes.byref(count)))
        structs = (_abi.dist_shard_range_t * max(1, count.value))()
        for struct in structs:
            struct.struct_size = ctypes.sizeof(_abi.dist_shard_range_t)
        call_status("ranges", None, lib.dist_shard_ranges(self._handle, structs, count.value,
                                                          ctypes.byref(count)))
        return [self._range(structs[i]) for i in range(count.value)]

    def _range(self, struct: Any) -> Range:
        parameter = self._reducer.parameters[struct.param]
        dtype = _buffers.read(parameter.data).dtype
        grad_dtype = dtype
        if parameter.grad is not None:
            grad_dtype = _buffers.read(parameter.grad).dtype
        elif parameter.grad_dtype is not None:
            grad_dtype = _dtypes.dtype_number(parameter.grad_dtype)
        shape = (struct.count,)
        return Range(
            struct.param, struct.begin, struct.count, struct.bucket, struct.offset,
            array_at(struct.data, shape, dtype, self),
            array_at(struct.grad, shape, grad_dtype, self) if struct.grad else None,
        )

    def state(self, name: int | str) -> Any:
        """Returns one of the optimizer's states, an array of f32 for the elements of this rank."""
        index = name if isinstance(name, int) else self._states.index(name)
        address, count = ctypes.c_void_p(), ctypes.c_size_t()
        status = lib.dist_shard_state(self._handle, index, ctypes.byref(address),
                                      ctypes.byref(count))
        call_status("state", None, status)
        return array_at(address.value, (count.value,), _abi.DIST_F32, self)

    def gather(self, *, wait: bool = True) -> Work | None:
        """Sends the elements that this rank has updated to all ranks, and receives the others."""
        group = self._reducer._group._handle
        handle = ctypes.c_void_p()
        status = lib.dist_shard_gather(self._handle, ctypes.byref(handle))
        call_status("gather", group, status)
        assert handle.value is not None
        work = Work(handle.value, "gather", group, self)
        if not wait:
            return work
        work.wait()
        return None

    def wait(self, parameter: int) -> None:
        """Waits for a parameter of a running gather."""
        blocking("wait", None, lib.dist_shard_wait, self._handle, parameter)

    def save(self, *, root: int = 0) -> bytes | None:
        """Collects the states of all ranks at the root, for a checkpoint."""
        out = ctypes.c_void_p()
        blocking("save", None, lib.dist_shard_save, self._handle, root, ctypes.byref(out))
        return blob_bytes(out.value) if self._reducer._group.rank == root else None

    def load(self, data: bytes = b"", *, root: int = 0) -> None:
        """Loads the result of `save` from the root, to any number of ranks."""
        address, length, keep = _buffers.bytes_buffer(data)
        blocking("load", None, lib.dist_shard_load, self._handle, address, length, root)
        del keep

    def release(self) -> None:
        """Releases the shard and its states."""
        handle, self._handle = self._handle, 0
        if handle:
            blocking("release", None, lib.dist_shard_release, handle)

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def __del__(self, release: Any = lib.dist_shard_release) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            release(handle)
