"""Logs, debug levels and traces of this process. Groups have their flight recorders."""

from __future__ import annotations

import os

from . import _abi
from ._call import blocking
from ._library import check, lib, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_LOG_LEVELS = {
    "off": _abi.DIST_LOG_OFF,
    "error": _abi.DIST_LOG_ERROR,
    "warn": _abi.DIST_LOG_WARN,
    "info": _abi.DIST_LOG_INFO,
    "debug": _abi.DIST_LOG_DEBUG,
    "trace": _abi.DIST_LOG_TRACE,
}
_DEBUG_LEVELS = {
    "off": _abi.DIST_DEBUG_OFF,
    "info": _abi.DIST_DEBUG_INFO,
    "detail": _abi.DIST_DEBUG_DETAIL,
}
_state: dict[str, Any] = {}


def _number(levels: dict[str, int], level: str | int) -> int:
    if isinstance(level, int):
        return level
    try:
        return levels[level.lower()]
    except KeyError:
        raise ValueError(f"{level!r} is no level; the levels are {', '.join(levels)}") from None


def set_log_level(level: str | int) -> None:
    """Sets the log level: "off" (the default), "error", "warn", "info", "debug" or "trace"."""
    check(lib.dist_set_log_level(_number(_LOG_LEVELS, level)), "set_log_level")


def set_log_callback(function: Callable[[str, str], None] | None) -> None:
    """Sends log lines to a function instead of standard error; None sends them there again.

    The function gets the name of the level and the line, on any thread of the process. It must
    not call the library.
    """
    if function is None:
        check(lib.dist_set_log_callback(_abi.dist_log_fn(), None), "set_log_callback")
        _state.pop("log", None)
        return
    names = {number: name for name, number in _LOG_LEVELS.items()}

    def call(level: int, line: bytes, _user: int) -> None:
        function(names.get(level, str(level)), line.decode("utf-8", "replace"))

    callback = _abi.dist_log_fn(call)
    check(lib.dist_set_log_callback(callback, None), "set_log_callback")
    _state["log"] = callback
    if "registered" not in _state:
        import atexit

        _state["registered"] = True
        # No thread of the library may call a function of Python after the interpreter's end.
        atexit.register(set_log_callback, None)


def set_debug_level(level: str | int) -> None:
    """Sets the debug level: "off" (the default), "info" or "detail"."""
    check(lib.dist_set_debug_level(_number(_DEBUG_LEVELS, level)), "set_debug_level")


def trace_start(path: str | os.PathLike[str]) -> None:
    """Starts a trace of this process's operations, in a file for Perfetto."""
    check(lib.dist_trace_start(text(path)), "trace_start")


def trace_stop() -> None:
    """Ends the trace and completes its file."""
    blocking("trace_stop", None, lib.dist_trace_stop)
