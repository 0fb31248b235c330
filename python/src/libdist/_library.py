"""Loads `libdist.so.0` and calls it: the library, its statuses, and its messages.

Every function of the C interface is an attribute of `lib`. ctypes releases the GIL during each
call. Other modules of this package, `libdist.torch` among them, use these names:

    lib             the loaded library, with the types of `_abi.FUNCTIONS`
    check(status)   raises the exception of a status that is an error
    blob_bytes(h)   copies and releases a blob
    milliseconds(t) converts seconds to a time-out of the library
"""

from __future__ import annotations

import ctypes
import math
import os

from . import _abi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

    from ._abi import Library

# The folder of the package, which has the library in `lib`.
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
SONAME = "libdist.so.0"


def library_path() -> str:
    """Returns the path of the library: LIBDIST_LIBRARY if it is set, else the package's own."""
    chosen = os.environ.get("LIBDIST_LIBRARY")
    return chosen or os.path.join(_PACKAGE, "lib", SONAME)


def _load() -> Library:
    path = library_path()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as cause:
        raise ImportError(
            f"libdist: the library {path} cannot be loaded: {cause}; install the package again, "
            "or set LIBDIST_LIBRARY to the path of libdist.so.0"
        ) from cause
    try:
        for name, (result, parameters) in _abi.FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = parameters
    except AttributeError as cause:
        version = loaded.dist_version_string
        version.restype = ctypes.c_char_p
        raise ImportError(
            f"libdist: the library {path} has version {version().decode()} and lacks a function "
            f"of this package: {cause}; the package and the library must have one version"
        ) from cause
    return loaded  # type: ignore[return-value]


lib: Library = _load()


def last_error() -> str:
    """Returns the message of the last failed call of this thread."""
    return (lib.dist_last_error() or b"").decode("utf-8", "replace")


def copied_text(function: Any, *arguments: Any) -> str:
    """Returns the text of a function with the last parameters `buf` and `cap`."""
    capacity = 256
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        needed = function(*arguments, buffer, capacity)
        if needed <= capacity:
            return buffer.value.decode("utf-8", "replace")
        capacity = needed


def check(status: int, operation: str | None = None, group: int | None = None) -> None:
    """Raises the exception of an error; `group` is a handle, which names the guilty rank."""
    if status < 0:
        from . import errors

        raise errors.from_status(status, last_error(), operation=operation, group=group)


def new_handle() -> ctypes.c_void_p:
    """Returns a variable for a handle that a call returns."""
    return ctypes.c_void_p()


def blob_list(handle: int | None) -> list[bytes]:
    """Copies the byte strings of a blob, and releases it."""
    if not handle:
        return []
    data, length = ctypes.c_void_p(), ctypes.c_size_t()
    try:
        strings = []
        for index in range(lib.dist_blob_count(handle)):
            check(lib.dist_blob_data(handle, index, ctypes.byref(data), ctypes.byref(length)))
            strings.append(ctypes.string_at(data.value or 0, length.value) if length.value else b"")
        return strings
    finally:
        lib.dist_blob_release(handle)


def blob_bytes(handle: int | None) -> bytes:
    """Copies the only byte string of a blob, and releases it."""
    strings = blob_list(handle)
    return strings[0] if strings else b""


def text(value: str | bytes | os.PathLike[str] | None) -> bytes | None:
    """Converts a text to UTF-8; None stays None, which is NULL."""
    if value is None or isinstance(value, bytes):
        return value
    return os.fspath(value).encode("utf-8")


def milliseconds(seconds: float | None) -> int:
    """Converts a time-out in seconds to the library's milliseconds.

    None is the default, infinity is no limit, and 0 is no time. A shorter time than one
    millisecond is one millisecond.
    """
    if seconds is None:
        return 0
    if math.isnan(seconds) or seconds < 0:
        raise ValueError(f"a time-out is a number of seconds, 0 or more, and not {seconds!r}")
    if seconds == 0:
        return _abi.DIST_NO_WAIT
    if seconds >= 3_155_760_000:
        return _abi.DIST_WAIT_FOREVER
    return max(1, round(seconds * 1000))


def c_array(element: Any, values: Sequence[Any]) -> Any:
    """Returns a C array of the values."""
    return (element * len(values))(*values)
