"""Works: operations that were issued and may still be running."""

from __future__ import annotations

import ctypes
import threading
import time

from . import _abi, _wait, errors
from ._library import c_array, last_error, lib, milliseconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Generator, Iterable, Sequence

    from concurrent.futures import Future

_finish_lock = threading.RLock()


class Work:
    """An operation of a group, with its progress and its result.

    The work keeps the buffers of its operation alive, also if the program drops the work before
    the operation has ended. Any thread may use it.
    """

    __slots__ = ("__weakref__", "_finish", "_group", "_handle", "_keep", "_result", "operation")

    def __init__(
        self,
        handle: int,
        operation: str,
        group: int | None = None,
        keep: Any = None,
        finish: Callable[[], Any] | None = None,
        result: Any = None,
    ) -> None:
        self._handle = handle
        self._group = group
        self._keep = keep
        self._finish = finish
        self._result = result
        self.operation = operation

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the operation is done, and returns its result.

        `timeout` is in seconds; the default is the operation's own deadline. If the time passes,
        the call raises `InProgress`, and the operation continues.
        """
        limit = milliseconds(timeout)
        if _wait.is_sliced() and limit != _abi.DIST_NO_WAIT:
            status = self._wait_in_slices(limit)
        else:
            status = lib.dist_work_wait(self._handle, limit)
        if status == _abi.DIST_IN_PROGRESS:
            raise errors.InProgress(
                f"{self.operation}: the operation continues after {timeout} s", status=status,
                operation=self.operation,
            )
        if status < 0:
            raise self._error(status)
        return self._take_result()

    def _wait_in_slices(self, limit: int) -> int:
        """Waits in short slices, so that Python can run the handlers of signals between them."""
        end = time.monotonic() + limit / 1000 if limit > 0 else None
        try:
            while True:
                left = limit
                if end is not None:
                    left = int((end - time.monotonic()) * 1000)
                    if left <= 0:
                        return lib.dist_work_wait(self._handle, _abi.DIST_NO_WAIT)
                status = lib.dist_work_wait_slice(self._handle, left, _wait.SLICE_MS)
                if status != _abi.DIST_IN_PROGRESS:
                    return status
        except KeyboardInterrupt as error:
            if isinstance(error, errors.Interrupted):
                raise
            raise self._interrupted() from None

    def _interrupted(self) -> errors.Interrupted:
        done = ctypes.c_int32()
        status = lib.dist_work_test(self._handle, ctypes.byref(done))
        if done.value and status < 0:
            failure = last_error()
            return _wait.interrupted(self.operation, False, self, f"it has failed: {failure}")
        return _wait.interrupted(self.operation, True, self)

    def synchronize(self, timeout: float | None = None) -> Any:
        """As `wait`, but for GPU memory also until the device is done."""
        handle, limit = self._handle, milliseconds(timeout)
        status = _wait.blocking_call(
            self.operation, lambda: _status_and_message(lib.dist_work_synchronize, handle, limit)
        )
        if status[0] == _abi.DIST_IN_PROGRESS:
            message = f"{self.operation}: the operation continues after {timeout} s"
            raise errors.InProgress(message, status=status[0], operation=self.operation)
        if status[0] < 0:
            raise self._error(*status)
        return self._take_result()

    def done(self) -> bool:
        """Returns whether the operation is done, with success or with an error."""
        done = ctypes.c_int32()
        status = lib.dist_work_test(self._handle, ctypes.byref(done))
        if status < 0 and not done.value:
            raise self._error(status)
        return bool(done.value)

    def exception(self) -> errors.Error | None:
        """Returns the error of a failed operation; None while it runs and after success."""
        done = ctypes.c_int32()
        status = lib.dist_work_test(self._handle, ctypes.byref(done))
        return self._error(status) if status < 0 else None

    def then(self, function: Callable[[Work], Any]) -> Future[Any]:
        """Calls a function with this work once the operation is done, also after an error.

        A thread of the library calls the functions of all works, one after the other. The function
        must not block: it may issue operations with `wait=False`, and may call `wait` of works
        that are done. Returns the future of the function's result.
        """
        from concurrent.futures import Future

        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(self))
            except BaseException as error:
                future.set_exception(error)

        _wait.call_when_done(self._handle, run)
        return future

    def __await__(self) -> Generator[Any, None, Any]:
        """Waits in an event loop of asyncio, and returns the result of the operation."""
        import asyncio

        if not self.done():
            loop = asyncio.get_running_loop()
            future = loop.create_future()

            def wake() -> None:
                if not future.done():
                    future.set_result(None)

            def notify() -> None:
                try:
                    loop.call_soon_threadsafe(wake)
                except RuntimeError:
                    # The event loop was closed; nobody waits any more.
                    pass

            _wait.call_when_done(self._handle, notify)
            yield from future.__await__()
        return self.wait()

    @property
    def sequence(self) -> int:
        """The number of the operation in its group, from 1."""
        return lib.dist_work_sequence(self._handle)

    @property
    def elapsed(self) -> float:
        """The seconds from the issue of the operation until it was done, or until now."""
        return lib.dist_work_elapsed_ns(self._handle) / 1e9

    @property
    def source(self) -> int:
        """For a received message, its sender; for a sent one, its receiver; else -1."""
        return lib.dist_work_source(self._handle)

    @property
    def tag(self) -> int:
        """The tag of a message; -1 while the work runs and for other operations."""
        return lib.dist_work_tag(self._handle)

    @property
    def received_count(self) -> int:
        """The number of elements of a received message."""
        return lib.dist_work_received_count(self._handle)

    def _error(self, status: int, message: str | None = None) -> errors.Error:
        text = last_error() if message is None else message
        return errors.from_status(
            status, text, operation=self.operation, group=self._group, work=self._handle
        )

    def _take_result(self) -> Any:
        if self._finish is not None:
            with _finish_lock:
                if self._finish is not None:
                    self._result = self._finish()
                    self._finish = None
        return self._result

    def __repr__(self) -> str:
        return f"<libdist.Work {self.operation} #{self.sequence}>"

    def __del__(
        self,
        test: Any = lib.dist_work_test,
        release: Any = lib.dist_work_release,
        keep: Any = _wait.keep_until_done,
        done_type: Any = ctypes.c_int32,
        byref: Any = ctypes.byref,
    ) -> None:
        done = done_type(1)
        test(self._handle, byref(done))
        if done.value:
            if self._finish is not None:
                self._discard()
            release(self._handle)
        else:
            keep(self._handle, (self._keep, self._result), self._finish)

    def _discard(self) -> None:
        """Frees what the operation has made, if the program never asked for the result."""
        try:
            self._take_result()
        except Exception:
            # There is no caller for the error.
            pass


def _status_and_message(function: Any, *arguments: Any) -> tuple[int, str]:
    """Calls a function on the thread whose message belongs to the status."""
    status = function(*arguments)
    return status, last_error() if status < 0 else ""


def _handles(works: Sequence[Work | None]) -> Any:
    handles = [work._handle if work is not None else None for work in works]
    return c_array(ctypes.c_void_p, handles)


def wait_all(works: Iterable[Work], timeout: float | None = None) -> list[Any]:
    """Waits until all works are done, and returns their results in the order of the list."""
    listed = list(works)
    end = None if timeout is None else time.monotonic() + timeout
    results = []
    for work in listed:
        left = None if end is None else max(0.0, end - time.monotonic())
        results.append(work.wait(left))
    return results


def wait_any(works: Iterable[Work | None], timeout: float | None = None) -> int:
    """Waits until a work of the list is done, and returns its index. None entries are skipped.

    An error of the work is raised by the `wait` of this work.
    """
    listed = list(works)
    if all(work is None for work in listed):
        raise ValueError("wait_any needs at least one work")
    limit = milliseconds(timeout)
    index, handles = ctypes.c_size_t(), _handles(listed)
    end = time.monotonic() + limit / 1000 if limit > 0 else None
    while True:
        if _wait.is_sliced() and limit != _abi.DIST_NO_WAIT:
            left = limit if end is None else max(1, int((end - time.monotonic()) * 1000))
            status = lib.dist_work_wait_any_slice(
                handles, len(listed), left, _wait.SLICE_MS, ctypes.byref(index)
            )
        else:
            status = lib.dist_work_wait_any(handles, len(listed), limit, ctypes.byref(index))
        if status != _abi.DIST_IN_PROGRESS and index.value < len(listed):
            return index.value
        if status < 0:
            raise errors.from_status(status, last_error(), operation="wait_any")
        if limit == _abi.DIST_NO_WAIT or (end is not None and time.monotonic() >= end):
            raise errors.InProgress("wait_any: no work is done", status=_abi.DIST_IN_PROGRESS)
