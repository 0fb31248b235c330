"""A group of the library with the store through which its ranks have met."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from datetime import timedelta

import torch

from .. import _abi
from .._library import copied_text, last_error, lib, new_handle, text
from ..errors import from_status
from ._store import Meeting
from ._threads import threads

# The time that callbacks of futures and abort hooks have to return when the interpreter ends. The
# hook of torch's flight recorder takes several seconds on a busy machine.
_EXIT_S = 30

# Functions that end the threads of the subclass in C++. They take a limit in milliseconds.
end_functions = []

_living: weakref.WeakSet[NativeGroup] = weakref.WeakSet()


def milliseconds(timeout: timedelta) -> int:
    """Returns a time-out in milliseconds, at least 1."""
    return max(1, int(timeout.total_seconds() * 1000))


class NativeGroup:
    """The handle of a group. It ends with `release`, or when the interpreter ends."""

    def __init__(self, handle, meeting, timeout: timedelta):
        self.handle = handle
        self.rank = lib.dist_get_rank(handle)
        self.size = lib.dist_get_world_size(handle)
        self.timeout = timeout
        self._meeting = meeting
        self._lock = threading.Lock()
        # The first failure, as an exception.
        self.failure = None
        self.on_failure = None
        # Works that the program has dropped before they were done, with what they use.
        self._dropped = []
        _living.add(self)

    @classmethod
    def create(cls, store, rank, size, name, timeout, settings, global_ranks=()):
        """Creates a group together with its other ranks."""
        meeting = Meeting(store, rank, size, name, timeout)
        ranks = (ctypes.c_int32 * len(global_ranks))(*global_ranks)
        options = _abi.dist_group_options_t(
            struct_size=ctypes.sizeof(_abi.dist_group_options_t),
            fields=_abi.DIST_FIELD_RANK,
            store=meeting.handle,
            rank=rank,
            world_size=size,
            backend=text(settings.backend),
            name=meeting.name.encode(),
            timeout_ms=milliseconds(timeout),
            connect_timeout_ms=milliseconds(timeout),
            backend_options=text(settings.backend_options),
        )
        if global_ranks:
            options.global_ranks = ranks
            options.n_global_ranks = len(global_ranks)
        if settings.device is not None:
            options.fields |= _abi.DIST_FIELD_DEVICE
            options.device = settings.device
        handle = new_handle()
        status = lib.dist_group_create(ctypes.byref(options), ctypes.byref(handle))
        if status != _abi.DIST_OK:
            error = from_status(status, last_error(), operation="group_create")
            meeting.release()
            raise error
        return cls(handle, meeting, timeout)

    def shrink(self, timeout: timedelta | None = None) -> NativeGroup:
        """Creates a group of the remaining ranks."""
        options = _abi.dist_shrink_options_t()
        options.struct_size = ctypes.sizeof(options)
        if timeout is not None:
            options.timeout_ms = milliseconds(timeout)
        handle = new_handle()
        status = lib.dist_group_shrink(self.handle, ctypes.byref(options), ctypes.byref(handle))
        if status != _abi.DIST_OK:
            raise from_status(status, last_error(), operation="shrink")
        return NativeGroup(handle, None, self.timeout)

    def global_ranks(self) -> list[int]:
        """Returns the ranks of the members in the outermost group."""
        ranks = (ctypes.c_int32 * self.size)()
        lib.dist_group_ranks(self.handle, ranks, self.size)
        return list(ranks)

    def abort(self, reason: str) -> None:
        """Fails the group on all its ranks."""
        lib.dist_group_abort(self.handle, reason.encode())

    def release(self) -> None:
        """Leaves the group."""
        with self._lock:
            handle, self.handle = self.handle, None
        if handle is None:
            return
        # Ranks that made different calls get an error here. They have had it from their calls,
        # or have made the calls after the last one that needed this rank.
        lib.dist_group_release(handle)
        if self._meeting is not None:
            self._meeting.release()
        _living.discard(self)

    # Errors.

    def error_text(self) -> str:
        """Returns the message of the error that failed the group, or an empty text."""
        return copied_text(lib.dist_group_error, self.handle)

    def timed_out(self) -> bool:
        """Returns whether the group failed because a rank was late."""
        found = _abi.dist_culprit_t()
        found.struct_size = ctypes.sizeof(found)
        status = lib.dist_group_culprit(self.handle, ctypes.byref(found))
        return status == _abi.DIST_OK and found.kind == _abi.DIST_CULPRIT_LATE

    def error_of_work(self, status, work, operation):
        """Makes the exception of a failed work."""
        return self.error(status, copied_text(lib.dist_work_error, work), operation, work)

    def error_of_call(self, status, operation):
        """Makes the exception of a call of this thread that has failed."""
        return self.error(status, last_error(), operation, None)

    def error(self, status, message, operation, work):
        """Makes an exception, and remembers the first failure of the group."""
        reason = "Timed out waiting for other ranks: " if status == _abi.DIST_ERR_TIMEOUT else ""
        error = from_status(
            status,
            f"{operation}: {reason}{message}",
            operation=operation,
            group=self.handle,
            work=work,
        )
        if _abi.DIST_ERR_OUT_OF_MEMORY < status <= _abi.DIST_ERR_TIMEOUT and self.failure is None:
            self.failure = error
            if self.on_failure is not None:
                self.on_failure()
        return error

    # Dropped works.

    def adopt(self, work, keep, finish) -> None:
        """Keeps what a dropped work uses until the work is done."""
        self._dropped.append((work, keep, finish))

    def drain(self) -> None:
        """Releases the dropped works that are done."""
        if not self._dropped:
            return
        done = ctypes.c_int32()
        for entry in list(self._dropped):
            work, _keep, finish = entry
            status = lib.dist_work_test(work, ctypes.byref(done))
            if done.value:
                self._dropped.remove(entry)
                lib.dist_work_release(work)
                if finish is not None and status == _abi.DIST_OK:
                    with torch.no_grad():
                        finish(None)


def _leave_all() -> None:
    """Ends callbacks and groups before the interpreter ends.

    After this no thread of the library calls into the interpreter. Ranks that still wait for this
    one learn that it has left.
    """
    for _attempt in range(10):
        if lib.dist_callbacks_stop(1000) != _abi.DIST_IN_PROGRESS:
            break
    # The callbacks that still wait for a work need its end.
    for group in list(_living):
        group.release()
    # A thread that is inside torch when the interpreter ends would end the process with an error.
    threads.close(_EXIT_S)
    for end in end_functions:
        end(_EXIT_S * 1000)


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_living.clear)
