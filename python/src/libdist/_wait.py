"""Waits that a signal can interrupt, and functions that the library calls.

Python runs signal handlers on the main thread, between two instructions of Python. So a blocking
call of the main thread is issued as a work and waited for in slices of `SLICE_MS`. A call that has
no work runs on a helper thread while the main thread waits for it. Other threads call the library
directly, because signals do not interrupt them.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading

from . import _abi
from ._library import check, lib
from .errors import Interrupted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, TypeVar

    _T = TypeVar("_T")

# The main thread looks for signals at this interval.
SLICE_MS = 40

_settings = {"interruptible": True}
_current_thread = threading.get_ident


def set_interruptible(value: bool) -> None:
    """Chooses whether Ctrl-C interrupts blocking calls of the main thread (the default).

    Without it, a signal waits for the end of the call, and small blocking collectives take a
    shorter way: about 1 microsecond instead of 10.
    """
    _settings["interruptible"] = bool(value)


def is_sliced() -> bool:
    """Returns whether a blocking call of this thread must notice signals."""
    return _settings["interruptible"] and _current_thread() == threading.main_thread().ident


# --- Functions that the library calls when a work is done ---------------------------------------

_numbers = itertools.count(1)
_callbacks: dict[int, Callable[[], None]] = {}


def _call_back(_status: int, _message: bytes, number: int) -> None:
    function = _callbacks.pop(number, None)
    if function is None:
        return
    try:
        function()
    except BaseException:
        # The library cannot pass the error on; the hook prints it.
        sys.excepthook(*sys.exc_info())


_CALL_BACK = _abi.dist_work_fn(_call_back)


def call_when_done(work: int, function: Callable[[], None]) -> None:
    """Lets a thread of the library call a function once a work is done."""
    number = next(_numbers)
    _callbacks[number] = function
    try:
        check(lib.dist_work_on_complete(work, _CALL_BACK, number), "then")
    except BaseException:
        _callbacks.pop(number, None)
        raise


def keep_until_done(work: int, keep: Any, finish: Callable[[], Any] | None) -> None:
    """Releases a work, and keeps its buffers alive until its operation has ended.

    Then `finish` takes the result, which nobody asked for, so that its memory is freed.
    """

    def drop() -> None:
        nonlocal keep
        if finish is not None:
            finish()
        keep = None

    number = next(_numbers)
    _callbacks[number] = drop
    status = lib.dist_work_on_complete(work, _CALL_BACK, number)
    # After an error, for instance at the end of the interpreter, the entry stays: the memory is
    # then never freed, and the operation may use it until the process ends.
    lib.dist_work_release(work)
    if status == _abi.DIST_ERR_INVALID_HANDLE:
        _callbacks.pop(number, None)


# --- Calls without a work ------------------------------------------------------------------------


# An idle helper thread ends after this time in seconds. While it runs, the process counts as one
# with several threads, whose deadlocks are only logged.
_IDLE_TIME = 0.2


class _Helper:
    """A thread that runs one call after another. Idle helpers wait in `_idle`."""

    def __init__(self) -> None:
        self.task: Callable[[], None] | None = None
        self.wake = threading.Semaphore(0)
        threading.Thread(target=self._run, name="libdist-helper", daemon=True).start()

    def _run(self) -> None:
        while self.wake.acquire(timeout=_IDLE_TIME) or not self._retire():
            task, self.task = self.task, None
            if task is not None:
                task()
            _idle.append(self)

    def _retire(self) -> bool:
        """Returns whether the thread may end, because nobody has taken it for a new task."""
        try:
            _idle.remove(self)
        except ValueError:
            self.wake.acquire()
            return False
        return True

    def start(self, task: Callable[[], None]) -> None:
        self.task = task
        self.wake.release()


_idle: list[_Helper] = []
# A forked child has no helper threads.
os.register_at_fork(after_in_child=_idle.clear)


def blocking_call(
    name: str,
    call: Callable[[], _T],
    *,
    usable: bool = True,
    discard: Callable[[_T], Any] | None = None,
) -> _T:
    """Runs a call that blocks and has no work, so that a signal can interrupt the wait.

    After an interruption, the call continues on its helper thread until it ends by itself.
    `discard` then receives its result. `usable` tells the caller what can be used further.
    """
    if not is_sliced():
        return call()
    outcome: list[Any] = []
    done = threading.Lock()
    done.acquire()
    state = {"abandoned": False}
    guard = threading.Lock()

    def run() -> None:
        try:
            result: tuple[bool, Any] = (True, call())
        except BaseException as error:
            result = (False, error)
        with guard:
            outcome.append(result)
            is_abandoned = state["abandoned"]
        done.release()
        if is_abandoned and result[0] and discard is not None:
            discard(result[1])

    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    helper.start(run)
    try:
        # A lock with a time-out notices signals at once.
        done.acquire()
    except BaseException as error:
        with guard:
            state["abandoned"] = True
            finished = list(outcome)
        if finished and finished[0][0] and discard is not None:
            discard(finished[0][1])
        if type(error) is KeyboardInterrupt:
            raise interrupted(name, usable) from None
        raise
    succeeded, value = outcome[0]
    if succeeded:
        return value  # type: ignore[no-any-return]
    try:
        raise value
    finally:
        del value, outcome


def interrupted(name: str, usable: bool, work: Any = None, detail: str = "") -> Interrupted:
    """Returns the exception of an interrupted call."""
    if usable:
        state = "the operation continues in the background, and the group stays usable"
        if work is not None:
            state += "; wait for the exception's `work` before you use the buffers of the call"
    else:
        state = "this process has no world"
    message = f"{name} was interrupted by a signal: {detail or state}"
    return Interrupted(message, usable=usable, work=work)
