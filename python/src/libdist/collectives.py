"""The collectives of a group on vectors of one length.

Every rank of a group calls its collectives in the same order. A call blocks until its result is
complete; with `wait=False` it returns a `Work`. `out` receives the result. Without `out`, calls
whose result has the shape of the argument change the argument in place, and other calls return
new memory of the same kind as the argument. JAX arrays never change: their result is always new.

Every call also accepts the options `timeout`, `label`, `algorithm`, `flags`, `premul_scale` and
`stream` (see docs/python.md).
"""

from __future__ import annotations

import ctypes

from . import _abi, _buffers
from ._call import PREPARE, PreparedCall, issue
from ._dtypes import operator_number
from ._library import lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Union

    from typing_extensions import TypeAlias, Unpack

    from ._call import CallOptions
    from .operators import Operator

    Op: TypeAlias = Union[int, str, Operator]

SUM = _abi.DIST_SUM


def _device(*buffers: _buffers.Buffer | None) -> int | None:
    """Returns the GPU of the buffers; all of them are in one kind of memory."""
    if all(it is None or it.device is None for it in buffers):
        return None
    used = [it for it in buffers if it is not None]
    devices = {it.device for it in used}
    if len(devices) > 1:
        raise ValueError("the buffers of one call are in the memory of different devices")
    return used[0].device


def _same_type(name: str, first: _buffers.Buffer, second: _buffers.Buffer, count: int) -> None:
    """Checks the type and the length of a result."""
    if first.dtype != second.dtype:
        raise ValueError(f"{name}: out has another element type than the argument")
    if second.count != count:
        raise ValueError(f"{name}: out has {second.count} elements, and the result {count}")


class _Result:
    """Where the result of a call goes, and how it is returned."""

    __slots__ = ("buffer", "finish", "value")

    def __init__(self, buffer: _buffers.Buffer, value: Any,
                 finish: Callable[[], Any] | None) -> None:
        self.buffer = buffer
        self.value = value
        self.finish = finish


def new_result(source: Any, shape: tuple[int, ...], dtype: int | None = None) -> _Result:
    """Returns new memory for a result, of the same kind as an argument."""
    memory = _buffers.new_like(source, shape, dtype)
    buffer = _buffers.write(memory)
    if _buffers.is_jax(source):
        return _Result(buffer, None, lambda: _buffers.as_result(source, memory))
    return _Result(buffer, memory, None)


def result_in(
    name: str, source: Any, send: _buffers.Buffer, out: Any, shape: tuple[int, ...], count: int
) -> _Result:
    """Returns `out` as the place of a result, or new memory of the shape."""
    if out is None:
        return new_result(source, shape)
    buffer = _buffers.write(out, "out")
    _same_type(name, send, buffer, count)
    return _Result(buffer, out, None)


def _in_place(name: str, x: Any, send: _buffers.Buffer, out: Any) -> _Result:
    """Returns the place of a result that has the shape of the argument."""
    if out is None and send.is_writable:
        return _Result(send, x, None)
    if out is None and _buffers.is_jax(x):
        return new_result(x, send.shape)
    if out is None:
        # It is read-only: this call has the message.
        return _Result(_buffers.write(x, "x"), x, None)
    return result_in(name, x, send, out, send.shape, send.count)


class Collectives:
    """The part of `Group` that has the collectives."""

    _handle: int
    rank: int
    size: int

    def bind(self, operation: str, *arguments: Any, **options: Any) -> PreparedCall:
        """Returns a call with fixed buffers and options, which costs less for each repetition.

        For example: `step = group.bind("all_reduce", gradients)`, and then `step()`.
        """
        call = getattr(self, operation)(*arguments, wait=PREPARE, **options)
        if not isinstance(call, PreparedCall):
            raise TypeError(f"{operation} cannot be bound")
        return call

    def all_reduce(self, x: Any, op: Op = SUM, *, out: Any = None, wait: Any = True,
                   **options: Unpack[CallOptions]) -> Any:
        """Reduces the vectors of all ranks; every rank gets the same bits."""
        return self._reduce_like("all_reduce", lib.dist_all_reduce, x, op, out, wait, options)

    def scan(self, x: Any, op: Op = SUM, *, out: Any = None, wait: Any = True,
             **options: Unpack[CallOptions]) -> Any:
        """Reduces the vectors of the ranks 0 to r for rank r."""
        return self._reduce_like("scan", lib.dist_scan, x, op, out, wait, options)

    def exscan(self, x: Any, op: Op = SUM, *, out: Any = None, wait: Any = True,
               **options: Unpack[CallOptions]) -> Any:
        """Reduces the vectors of the ranks below r for rank r; rank 0's result is unchanged."""
        return self._reduce_like("exscan", lib.dist_exscan, x, op, out, wait, options)

    def _reduce_like(self, name: str, function: Any, x: Any, op: Op, out: Any, wait: Any,
                     options: Any) -> Any:
        send = _buffers.read(x, "x")
        place = _in_place(name, x, send, out)
        recv = place.buffer
        arguments = (self._handle, send.address, recv.address, send.count, send.dtype,
                     operator_number(op))
        return issue(self, name, function, arguments, options, device=_device(send, recv),
                     wait=wait, keep=(send, recv, op), finish=place.finish, result=place.value)

    def reduce(self, x: Any, op: Op = SUM, *, root: int = 0, out: Any = None, wait: Any = True,
               **options: Unpack[CallOptions]) -> Any:
        """Reduces the vectors of all ranks on the root; other ranks return None."""
        send = _buffers.read(x, "x")
        if self.rank == root:
            place = _in_place("reduce", x, send, out)
            recv, address = place.buffer, place.buffer.address
        else:
            place, recv, address = _Result(send, None, None), send, None
        arguments = (self._handle, send.address, address, send.count, send.dtype,
                     operator_number(op), root)
        return issue(self, "reduce", lib.dist_reduce, arguments, options,
                     device=_device(send, recv), wait=wait, keep=(send, recv, op),
                     finish=place.finish, result=place.value)

    def broadcast(self, x: Any, *, root: int = 0, wait: Any = True,
                  **options: Unpack[CallOptions]) -> Any:
        """Copies the root's vector to all ranks, in place, and returns it.

        A JAX array gives the shape and the type; the result is a new array.
        """
        buffer = _buffers.read(x, "x")
        finish: Callable[[], Any] | None = None
        value = x
        if not buffer.is_writable and self.rank != root:
            place = _in_place("broadcast", x, buffer, None)
            buffer, value, finish = place.buffer, place.value, place.finish
        arguments = (self._handle, buffer.address, buffer.count, buffer.dtype, root)
        return issue(self, "broadcast", lib.dist_broadcast, arguments, options,
                     device=_device(buffer), wait=wait, keep=buffer, finish=finish, result=value)

    def all_gather(self, x: Any, *, out: Any = None, wait: Any = True,
                   **options: Unpack[CallOptions]) -> Any:
        """Gives every rank the vectors of all ranks, with a new first dimension: the rank."""
        send = _buffers.read(x, "x")
        place = result_in("all_gather", x, send, out, (self.size, *send.shape),
                          self.size * send.count)
        recv = place.buffer
        arguments = (self._handle, send.address, recv.address, send.count, send.dtype)
        return issue(self, "all_gather", lib.dist_all_gather, arguments, options,
                     device=_device(send, recv), wait=wait, keep=(send, recv),
                     finish=place.finish, result=place.value)

    def reduce_scatter(self, x: Any, op: Op = SUM, *, out: Any = None, wait: Any = True,
                       **options: Unpack[CallOptions]) -> Any:
        """Reduces one block for each rank; the first dimension of `x` is divided by the ranks."""
        send = _buffers.read(x, "x")
        shape = self._block_shape("reduce_scatter", send)
        count = send.count // self.size
        place = result_in("reduce_scatter", x, send, out, shape, count)
        recv = place.buffer
        arguments = (self._handle, send.address, recv.address, count, send.dtype,
                     operator_number(op))
        return issue(self, "reduce_scatter", lib.dist_reduce_scatter, arguments, options,
                     device=_device(send, recv), wait=wait, keep=(send, recv, op),
                     finish=place.finish, result=place.value)

    def _block_shape(self, name: str, buffer: _buffers.Buffer) -> tuple[int, ...]:
        """Returns the shape of one rank's block of a vector."""
        rows = buffer.shape[0] if buffer.shape else 1
        if rows % self.size:
            raise ValueError(
                f"{name}: the first dimension of x is {rows}, which is no multiple of the "
                f"{self.size} ranks of the group"
            )
        if rows == self.size:
            return buffer.shape[1:]
        return (rows // self.size, *buffer.shape[1:])

    def gather(self, x: Any, *, root: int = 0, out: Any = None, wait: Any = True,
               **options: Unpack[CallOptions]) -> Any:
        """Gives the root the vectors of all ranks, with a new first dimension: the rank."""
        send = _buffers.read(x, "x")
        place, address = _Result(send, None, None), None
        if self.rank == root:
            place = result_in("gather", x, send, out, (self.size, *send.shape),
                              self.size * send.count)
            address = place.buffer.address
        arguments = (self._handle, send.address, address, send.count, send.dtype, root)
        return issue(self, "gather", lib.dist_gather, arguments, options,
                     device=_device(send, place.buffer), wait=wait, keep=(send, place.buffer),
                     finish=place.finish, result=place.value)

    def scatter(self, x: Any = None, *, root: int = 0, out: Any = None, wait: Any = True,
                **options: Unpack[CallOptions]) -> Any:
        """Gives each rank its block of the root's vector.

        The root passes `x`, whose first dimension is divided by the ranks. Other ranks pass
        `out`, which gets their block.
        """
        send: _buffers.Buffer | None = None
        if self.rank == root:
            send = _buffers.read(x, "x")
            shape = self._block_shape("scatter", send)
            place = result_in("scatter", x, send, out, shape, send.count // self.size)
        elif out is None:
            raise TypeError("scatter: every rank except the root passes out=, for its block")
        else:
            place = _Result(_buffers.write(out, "out"), out, None)
        recv = place.buffer
        address = send.address if send is not None else None
        arguments = (self._handle, address, recv.address, recv.count, recv.dtype, root)
        return issue(self, "scatter", lib.dist_scatter, arguments, options,
                     device=_device(send, recv), wait=wait, keep=(send, recv),
                     finish=place.finish, result=place.value)

    def all_to_all(self, x: Any, *, out: Any = None, wait: Any = True,
                   **options: Unpack[CallOptions]) -> Any:
        """Sends block j of `x` to rank j; block i of the result comes from rank i."""
        send = _buffers.read(x, "x")
        self._block_shape("all_to_all", send)
        place = result_in("all_to_all", x, send, out, send.shape, send.count)
        recv = place.buffer
        arguments = (self._handle, send.address, recv.address, send.count // self.size, send.dtype)
        return issue(self, "all_to_all", lib.dist_all_to_all, arguments, options,
                     device=_device(send, recv), wait=wait, keep=(send, recv),
                     finish=place.finish, result=place.value)

    def barrier(self, *, wait: Any = True, **options: Unpack[CallOptions]) -> Any:
        """Waits until all ranks have called."""
        return issue(self, "barrier", lib.dist_barrier, (self._handle,), options, wait=wait)

    def all_equal(self, x: Any, **options: Unpack[CallOptions]) -> bool:
        """Returns whether all ranks have the same bytes; see also `first_difference`."""
        return self.first_difference(x, **options) is None

    def first_difference(self, x: Any, **options: Unpack[CallOptions]) -> int | None:
        """Returns the lowest rank whose bytes differ from those of rank 0; None if none does."""
        from ._call import blocking, call_options

        buffer = _buffers.read(x, "x")
        if buffer.device is not None:
            raise ValueError("all_equal compares host memory only")
        rank = ctypes.c_int32(-1)
        struct = call_options("all_equal", dict(options), None)
        reference = None if struct is None else ctypes.byref(struct)
        blocking("all_equal", self._handle, lib.dist_all_equal, self._handle, buffer.address,
                 buffer.nbytes, None, ctypes.byref(rank), reference)
        return rank.value if rank.value >= 0 else None
