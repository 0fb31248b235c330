"""Issues one call of a group: options, the choice between blocking and a work, and errors."""

from __future__ import annotations

import ctypes

from . import _abi, _wait, errors
from ._library import last_error, milliseconds, text
from .work import Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from typing import TypedDict

    class CallOptions(TypedDict, total=False):
        """The options that every collective and every message accepts.

        timeout       seconds from the call; the default is the group's
        label         a text of at most 32 bytes, for errors, the flight recorder and traces
        algorithm     the name of an algorithm, the same on all ranks
        flags         a sum of CANONICAL, CHECK_NAN, CHECK_INF and SYNCHRONOUS
        premul_scale  this rank's factor for PREMUL_SUM
        stream        the CUDA stream of a call on GPU memory, as an integer
        """

        timeout: float | None
        label: str | None
        algorithm: str | None
        flags: int
        premul_scale: float
        stream: int


_NAMES = {"timeout", "label", "algorithm", "flags", "premul_scale", "stream"}
_SIZE = ctypes.sizeof(_abi.dist_call_options_t)

# In place of `wait`: return the prepared call instead of making it.
PREPARE = object()


def call_options(name: str, options: dict[str, Any], device: int | None) -> Any:
    """Returns the struct of the options, or None (NULL) if all have their defaults."""
    if not options and device is None:
        return None
    unknown = options.keys() - _NAMES
    if unknown:
        raise TypeError(f"{name}() has no option {', '.join(sorted(unknown))!s}")
    flags = options.get("flags", 0)
    struct = _abi.dist_call_options_t(
        struct_size=_SIZE,
        timeout_ms=milliseconds(options.get("timeout")),
        premul_scale=options.get("premul_scale", 0.0),
        algorithm=text(options.get("algorithm")),
        flags=flags,
        stream=options.get("stream"),
        label=text(options.get("label")),
    )
    if device is not None:
        struct.flags = flags | _abi.DIST_CALL_DEVICE
        struct.device = device
    return struct


class PreparedCall:
    """A call whose buffers and options are fixed; calling it makes the call."""

    __slots__ = ("_arguments", "_finish", "_function", "_group", "_keep", "_name", "_result")

    def __init__(self, group: Any, name: str, function: Any, arguments: tuple[Any, ...], keep: Any,
                 finish: Callable[[], Any] | None, result: Any) -> None:
        self._group = group
        self._name = name
        self._function = function
        self._arguments = arguments
        self._keep = keep
        self._finish = finish
        self._result = result

    def __call__(self, wait: bool = True) -> Any:
        """Makes the call; `wait=False` returns its work."""
        group = self._group
        if wait and (group.size == 1 or not _wait.is_sliced()):
            status = self._function(*self._arguments, None)
            if status:
                raise errors.from_status(
                    status, last_error(), operation=self._name, group=group._handle
                )
            return self._finish() if self._finish is not None else self._result
        handle = ctypes.c_void_p()
        status = self._function(*self._arguments, ctypes.byref(handle))
        if status:
            raise errors.from_status(
                status, last_error(), operation=self._name, group=group._handle
            )
        if handle.value is None:
            # Inside a batch without a work; the batch keeps the buffers.
            return self._result
        keep = (self._keep, self._arguments)
        work = Work(handle.value, self._name, group._handle, keep, self._finish, self._result)
        return work.wait() if wait else work


def issue(
    group: Any,
    name: str,
    function: Any,
    arguments: tuple[Any, ...],
    options: Any,
    *,
    device: int | None = None,
    wait: Any = True,
    keep: Any = None,
    finish: Callable[[], Any] | None = None,
    result: Any = None,
) -> Any:
    """Makes a call that ends with the parameters `options` and `work`.

    `finish` makes the result when the operation is done; without it, the result is `result`.
    """
    struct = call_options(name, options, device)
    reference = None if struct is None else ctypes.byref(struct)
    keep = (keep, struct)
    call = PreparedCall(group, name, function, (*arguments, reference), keep, finish, result)
    if wait is PREPARE:
        return call
    batch = group._batch()
    if batch is None:
        return call(wait)
    # A batch issues the call at its end, and has the only work that can be waited for.
    if wait:
        status = function(*arguments, reference, None)
        if status:
            raise errors.from_status(status, last_error(), operation=name, group=group._handle)
        batch.add(keep, arguments, finish)
        return result
    return call(False)


def call_status(name: str, group: int | None, status: int) -> None:
    """Raises the error of a call without a work."""
    if status < 0:
        raise errors.from_status(status, last_error(), operation=name, group=group)


def blocking(name: str, group: int | None, function: Any, *arguments: Any,
             usable: bool = True, discard: Any = None) -> int:
    """Makes a call that has no work, on a helper thread if a signal must interrupt it."""

    def call() -> int:
        status = function(*arguments)
        call_status(name, group, status)
        return int(status)

    return _wait.blocking_call(name, call, usable=usable, discard=discard)
