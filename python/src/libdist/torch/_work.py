"""Works: operations that torch has issued, with their tensors, their futures and their errors."""

from __future__ import annotations

import ctypes
import threading
import time
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from .. import _abi
from .._library import last_error, lib
from ..errors import InProgress, from_status
from ._threads import threads

_ZERO = timedelta(0)

# A wait returns to the interpreter this often, so that it runs the handlers of signals.
_SLICE_MS = 50

# The works whose completion callback has not run. The key is the address that the library passes.
_expected: dict[int, LibdistWork] = {}
_next_key = 1
_keys = threading.Lock()


@_abi.dist_work_fn
def _on_complete(status, _message, key):
    """Hands a work to the threads that settle works."""
    work = _expected.pop(key, None)
    if work is not None:
        threads.submit(work._settle, status, True)


class LibdistWork(Work):
    """One operation of a group. Several threads may wait for it."""

    def __init__(self, group, handle, operation, keep, outputs, finish=None, recorded=None):
        super().__init__()
        self._group = group
        self._handle = handle
        self._operation = operation
        # The tensors and arrays that the library uses until the operation is done.
        self._keep = keep
        self._outputs = outputs
        # Moves the result to tensors that the library could not write itself.
        self._finish = finish
        self._lock = threading.Lock()
        self._done = False
        self._error = None
        self._future = None
        self._source = -1
        self._elapsed_ms = 0.0
        self._sequence = 0
        # The profiler's record of the operation. It ends on the thread of the callbacks.
        self._recorded = recorded
        self._record_ended = None
        if recorded is not None:
            self._record_ended = threading.Event()
            self._expect_callback()

    # Progress.

    def wait(self, timeout=_ZERO):
        """Waits until the operation is done, and raises its error."""
        if not self._done:
            self._wait(timeout)
        if self._record_ended is not None:
            self._record_ended.wait(10)
        if self._error is not None:
            raise self._error
        return True

    def _wait(self, timeout):
        limit_ms = timeout.total_seconds() * 1000 if timeout > _ZERO else None
        begin = time.monotonic()
        left_ms = 0
        while not self._done:
            if limit_ms is not None:
                remaining = limit_ms - (time.monotonic() - begin) * 1000
                if remaining <= 0:
                    raise InProgress(
                        f"Timed out waiting {limit_ms:.0f}ms for {self._operation}; the "
                        "operation continues"
                    )
                left_ms = max(1, int(remaining))
            status = lib.dist_work_wait_slice(self._handle, left_ms, _SLICE_MS)
            if status != _abi.DIST_IN_PROGRESS:
                self._settle(status)

    def is_completed(self):
        """Returns whether the operation is done, also if it has failed."""
        if not self._done:
            done = ctypes.c_int32()
            status = lib.dist_work_test(self._handle, ctypes.byref(done))
            if done.value:
                self._settle(status)
        return self._done

    def _settle(self, status, from_callback=False):
        """Stores the outcome once, and releases what the operation has used."""
        with self._lock:
            if not self._done:
                self._complete(status)
        if self._future is not None and not self._future.done():
            self._resolve()
        if from_callback and self._recorded is not None:
            torch.autograd._record_function_with_args_exit(self._recorded)
            self._record_ended.set()

    def _complete(self, status):
        handle = self._handle
        if status == _abi.DIST_OK:
            try:
                if self._finish is not None:
                    with torch.no_grad():
                        self._finish(self)
                self._source = lib.dist_work_source(handle)
            except BaseException as error:  # noqa: BLE001 - the waiting thread gets the error
                self._error = error
        else:
            self._error = self._group.error_of_work(status, handle, self._operation)
        self._elapsed_ms = lib.dist_work_elapsed_ns(handle) / 1e6
        self._handle = None
        lib.dist_work_release(handle)
        self._keep = None
        self._finish = None
        self._done = True

    def __del__(self):
        if not self.__dict__.get("_done", True):
            # The library still uses the tensors.
            self._group.adopt(self._handle, self._keep, self._finish)

    # Outcome.

    def is_success(self):
        """Returns whether the operation is done and has succeeded."""
        return self.is_completed() and self._error is None

    def exception(self):
        """Returns the error of the operation, or None."""
        return self._error if self.is_completed() else None

    def result(self):
        """Returns the tensors that have the result."""
        return list(self._outputs)

    def synchronize(self):
        """Does nothing: waiting for the work suffices."""

    def source_rank(self):
        """Returns the rank that sent the received message."""
        return self._source

    _source_rank = source_rank

    def _get_duration(self):
        return self._elapsed_ms

    def _get_sequence_number(self):
        return self._sequence

    # Futures.

    def get_future(self):
        """Returns a future that has the result tensors as its value."""
        if _probe.active:
            _probe.found = self
            return _probe.future
        with self._lock:
            if self._future is None:
                self._future = Future()
                self._answer = self._future.then(self._value)
                if not self._done and self._record_ended is None:
                    self._expect_callback()
        if self._done and not self._future.done():
            self._resolve()
        return self._answer

    def _value(self, _future):
        if self._error is not None:
            raise self._error
        return list(self._outputs)

    def _resolve(self):
        try:
            self._future.set_result(None)
        except RuntimeError:
            # Another thread has resolved the future since the check.
            if not self._future.done():
                raise

    def _expect_callback(self):
        global _next_key
        with _keys:
            key = _next_key
            _next_key += 1
        _expected[key] = self
        status = lib.dist_work_on_complete(self._handle, _on_complete, key)
        if status != _abi.DIST_OK:
            del _expected[key]
            raise from_status(status, last_error(), operation=self._operation)


class _Probe(threading.local):
    """Finds the Python work behind torch's wrapper of it, for one thread."""

    def __init__(self):
        self.active = False
        self.found = None
        self.future = Future()
        self.future.set_result(None)


_probe = _Probe()


def behind(work: Work) -> LibdistWork | None:
    """Returns the work of this package that a work of torch wraps, or None.

    torch wraps each work of a back end in Python, and its wrapper forwards only `wait` and
    `get_future`.
    """
    if isinstance(work, LibdistWork):
        return work
    if type(work) is not Work:
        return None
    _probe.active = True
    _probe.found = None
    try:
        work.get_future()
    except RuntimeError:
        return None  # a work without a future is not of this package
    finally:
        _probe.active = False
    return _probe.found


def forward_wrapped_methods() -> None:
    """Lets torch's wrapper of works forward all methods that a program may call on it."""
    names = (
        "is_completed",
        "is_success",
        "exception",
        "result",
        "synchronize",
        "source_rank",
        "_source_rank",
        "_get_duration",
        "_get_sequence_number",
    )
    if getattr(Work, "_libdist_forwards", False):
        return
    for name in names:
        original = getattr(Work, name, None)
        if original is not None:
            setattr(Work, name, _forwarding(name, original))
    Work._libdist_forwards = True


def _forwarding(name, original):
    own = getattr(LibdistWork, name)

    def method(work):
        found = behind(work)
        return original(work) if found is None else own(found)

    method.__name__ = name
    method.__doc__ = original.__doc__
    return method
