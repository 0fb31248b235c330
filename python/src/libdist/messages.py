"""Messages between two ranks, and collectives on byte strings of any length."""

from __future__ import annotations

import ctypes

from . import _abi, _buffers, errors
from ._call import blocking, call_options, issue
from ._library import blob_bytes, blob_list, c_array, lib, milliseconds
from .collectives import _device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

    from typing_extensions import Unpack

    from ._call import CallOptions

ANY_SOURCE = _abi.DIST_ANY_SOURCE
ANY_TAG = _abi.DIST_ANY_TAG


class Status(tuple):
    """What is known of a message: `source`, `tag`, `count` of elements, and their `dtype`."""

    __slots__ = ()

    def __new__(cls, source: int, tag: int, count: int, dtype: int) -> Status:
        return tuple.__new__(cls, (source, tag, count, dtype))

    source = property(lambda self: self[0])
    tag = property(lambda self: self[1])
    count = property(lambda self: self[2])  # type: ignore[assignment]
    dtype = property(lambda self: self[3])

    def __repr__(self) -> str:
        return f"Status(source={self[0]}, tag={self[1]}, count={self[2]}, dtype={self[3]})"


class Message:
    """A message that `probe` has found; no other receive can find it.

    Receive it with `recv` or `recv_bytes`, or call `release` to give it back.
    """

    def __init__(self, group: Any, handle: int, status: Status) -> None:
        self._group = group
        self._handle: int | None = handle
        self.status = status

    def recv(self, out: Any, *, wait: Any = True, **options: Unpack[CallOptions]) -> Any:
        """Receives the message into `out`, and returns it."""
        buffer = _buffers.write(out, "out")
        arguments = (self._handle, buffer.address, buffer.count, buffer.dtype, None)
        result = issue(self._group, "recv_message", lib.dist_recv_message, arguments, options,
                       wait=wait, keep=buffer, result=out)
        self._handle = None
        return result

    def recv_bytes(self, **options: Unpack[CallOptions]) -> bytes:
        """Receives the message as bytes."""
        out = bytearray(self.status.count)
        self.recv(out, **options)
        return bytes(out)

    def release(self) -> None:
        """Gives the message back; another receive can find it."""
        if self._handle is not None:
            lib.dist_message_release(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.release()


def _blob_result(take: Any) -> tuple[Any, Any]:
    """Returns the variable for a blob, and the function that takes its bytes when it is there."""
    handle = ctypes.c_void_p()
    return handle, lambda: take(handle.value)


class Messages:
    """The part of `Group` that has the messages, and the collectives on byte strings."""

    _handle: int
    rank: int
    size: int

    def send(self, x: Any, peer: int, tag: int = 0, *, wait: Any = True,
             **options: Unpack[CallOptions]) -> Any:
        """Sends an array to a rank. The call may return before the rank has received it."""
        buffer = _buffers.read(x, "x")
        arguments = (self._handle, buffer.address, buffer.count, buffer.dtype, peer, tag)
        return issue(self, "send", lib.dist_send, arguments, options, device=_device(buffer),
                     wait=wait, keep=buffer)

    def recv(self, out: Any, peer: int = ANY_SOURCE, tag: int = ANY_TAG, *, wait: Any = True,
             **options: Unpack[CallOptions]) -> Any:
        """Receives an array into `out`.

        Blocks and returns the `Status` of the message; with `wait=False` returns a `Work`, which
        has `source`, `tag` and `received_count`, and whose result is `out`.
        """
        buffer = _buffers.write(out, "out")
        arguments = (self._handle, buffer.address, buffer.count, buffer.dtype, peer, tag, None)
        device = _device(buffer)
        if wait is not True or self._batch() is not None:
            return issue(self, "recv", lib.dist_recv, arguments, options, device=device,
                         wait=wait, keep=buffer, result=out)
        work = issue(self, "recv", lib.dist_recv, arguments, options, device=device, wait=False,
                     keep=buffer, result=out)
        work.wait()
        return Status(work.source, work.tag, work.received_count, buffer.dtype)

    def sendrecv(self, x: Any, dest: int, out: Any, source: int = ANY_SOURCE, *,
                 send_tag: int = 0, recv_tag: int = ANY_TAG, wait: Any = True,
                 **options: Unpack[CallOptions]) -> Any:
        """Sends `x` to `dest` and receives into `out` at the same time; returns `out`."""
        send, recv = _buffers.read(x, "x"), _buffers.write(out, "out")
        if send.dtype != recv.dtype:
            raise ValueError("sendrecv: x and out have different element types")
        arguments = (self._handle, send.address, send.count, dest, send_tag, recv.address,
                     recv.count, source, recv_tag, send.dtype, None)
        return issue(self, "sendrecv", lib.dist_sendrecv, arguments, options, wait=wait,
                     keep=(send, recv), result=out)

    def probe(self, peer: int = ANY_SOURCE, tag: int = ANY_TAG, *, take: bool = False,
              **options: Unpack[CallOptions]) -> Status | Message | None:
        """Finds a message before it is received.

        Returns its `Status`; with `take`, a `Message`, which no other receive can find. With
        `timeout=0` the call does not wait, and returns None if there is no message.
        """
        status = _abi.dist_recv_status_t(struct_size=ctypes.sizeof(_abi.dist_recv_status_t))
        message = ctypes.c_void_p()
        struct = call_options("probe", dict(options), None)
        reference = None if struct is None else ctypes.byref(struct)
        result = blocking("probe", self._handle, lib.dist_probe, self._handle, peer, tag,
                          ctypes.byref(status), reference, ctypes.byref(message) if take else None)
        if result == _abi.DIST_IN_PROGRESS:
            return None
        found = Status(status.source, status.tag, status.count, status.dtype)
        return Message(self, message.value, found) if take and message.value else found

    def send_bytes(self, data: Any, peer: int, tag: int = 0, *, wait: Any = True,
                   **options: Unpack[CallOptions]) -> Any:
        """Sends bytes of any length to a rank."""
        address, length, keep = _buffers.bytes_buffer(data)
        arguments = (self._handle, address, length, peer, tag)
        return issue(self, "send_bytes", lib.dist_send_bytes, arguments, options, wait=wait,
                     keep=keep)

    def recv_bytes(self, peer: int = ANY_SOURCE, tag: int = ANY_TAG, *, max_bytes: int = 0,
                   wait: Any = True, **options: Unpack[CallOptions]) -> Any:
        """Receives bytes of any length; `max_bytes` refuses longer messages."""
        out, take = _blob_result(blob_bytes)
        arguments = (self._handle, ctypes.byref(out), max_bytes, peer, tag, None)
        return issue(self, "recv_bytes", lib.dist_recv_bytes, arguments, options, wait=wait,
                     keep=out, finish=take)

    def broadcast_bytes(self, data: Any = b"", *, root: int = 0, wait: Any = True,
                        **options: Unpack[CallOptions]) -> Any:
        """Gives every rank the root's bytes, of any length."""
        address, length, keep = _buffers.bytes_buffer(data if self.rank == root else b"")
        out, take = _blob_result(blob_bytes)
        arguments = (self._handle, address, length, root, ctypes.byref(out))
        return issue(self, "broadcast_bytes", lib.dist_broadcast_bytes, arguments, options,
                     wait=wait, keep=(keep, out), finish=take)

    def all_gather_bytes(self, data: Any, *, wait: Any = True,
                         **options: Unpack[CallOptions]) -> Any:
        """Gives every rank a list of the bytes of all ranks."""
        address, length, keep = _buffers.bytes_buffer(data)
        out, take = _blob_result(blob_list)
        arguments = (self._handle, address, length, ctypes.byref(out))
        return issue(self, "all_gather_bytes", lib.dist_all_gather_bytes, arguments, options,
                     wait=wait, keep=(keep, out), finish=take)

    def gather_bytes(self, data: Any, *, root: int = 0, wait: Any = True,
                     **options: Unpack[CallOptions]) -> Any:
        """Gives the root a list of the bytes of all ranks; other ranks return None."""
        address, length, keep = _buffers.bytes_buffer(data)
        out, take = _blob_result(blob_list)
        arguments = (self._handle, address, length, root, ctypes.byref(out))
        finish = take if self.rank == root else None
        return issue(self, "gather_bytes", lib.dist_gather_bytes, arguments, options, wait=wait,
                     keep=(keep, out), finish=finish)

    def scatter_bytes(self, data: Sequence[Any] | None = None, *, root: int = 0,
                      wait: Any = True, **options: Unpack[CallOptions]) -> Any:
        """Gives each rank its bytes of the root's list."""
        addresses = lengths = None
        keep: list[Any] = []
        if self.rank == root:
            if data is None or len(data) != self.size:
                raise ValueError(f"scatter_bytes: the root passes bytes for each of {self.size} ranks")
            keep = [_buffers.bytes_buffer(it) for it in data]
            addresses = c_array(ctypes.c_void_p, [it[0] if it[1] else None for it in keep])
            lengths = c_array(ctypes.c_size_t, [it[1] for it in keep])
        out, take = _blob_result(blob_bytes)
        arguments = (self._handle, addresses, lengths, root, ctypes.byref(out))
        return issue(self, "scatter_bytes", lib.dist_scatter_bytes, arguments, options, wait=wait,
                     keep=(keep, out), finish=take)

    def monitored_barrier(self, timeout: float | None = None, *,
                          wait_all_ranks: bool = False) -> None:
        """Waits until all ranks have called, or names the ranks that have not.

        A missing rank fails this barrier only, not the group: the exception has `missing`, a list
        of ranks.
        """
        missing = (ctypes.c_int32 * self.size)()
        length = ctypes.c_size_t(self.size)
        try:
            blocking("monitored_barrier", self._handle, lib.dist_monitored_barrier, self._handle,
                     milliseconds(timeout), int(wait_all_ranks), missing, ctypes.byref(length))
        except errors.Error as error:
            error.missing = list(missing[: length.value])  # type: ignore[attr-defined]
            raise

    def _batch(self) -> Any:
        raise NotImplementedError
