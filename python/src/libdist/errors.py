"""The exceptions of libdist, one class for each status.

All have the attributes of `Error`. `PeerFailed`, `Timeout` and `Mismatch` name the rank that
caused the failure, if the library knows it.
"""

from __future__ import annotations

import ctypes

from . import _abi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KINDS = {
    _abi.DIST_CULPRIT_DIED: "died",
    _abi.DIST_CULPRIT_LEFT: "left",
    _abi.DIST_CULPRIT_UNREACHABLE: "unreachable",
    _abi.DIST_CULPRIT_STOPPED: "stopped",
    _abi.DIST_CULPRIT_LATE: "late",
    _abi.DIST_CULPRIT_MISMATCH: "mismatch",
    _abi.DIST_CULPRIT_ABORTED: "aborted",
    _abi.DIST_CULPRIT_FAILED: "failed",
}


class Error(RuntimeError):
    """A call of the library failed.

    status     the number of the status, for example -101
    rank       the guilty rank in the group of the operation; None if the error names no rank
    pid        the process of this rank on its host; None if it is not known
    host       the name of the rank's host; None if it is not known
    kind       what the rank did: "died", "left", "unreachable", "stopped", "late", "mismatch",
               "aborted" or "failed"; None if the error names no rank
    operation  the name of the failed operation, for example "all_reduce"
    group      the name of the group of the operation
    """

    status: int = _abi.DIST_ERR_INTERNAL

    def __init__(
        self,
        message: str = "",
        *,
        status: int | None = None,
        rank: int | None = None,
        pid: int | None = None,
        host: str | None = None,
        kind: str | None = None,
        operation: str | None = None,
        group: str | None = None,
    ) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status
        self.message = message
        self.rank = rank
        self.pid = pid
        self.host = host
        self.kind = kind
        self.operation = operation
        self.group = group

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("status", "rank", "pid", "host", "kind", "operation", "group")
        fields = {name: getattr(self, name) for name in names}
        return (_rebuild, (type(self), self.message, fields))


def _rebuild(kind: type[Error], message: str, fields: dict[str, Any]) -> Error:
    return kind(message, **fields)


class InvalidArgument(Error, ValueError):
    """An argument is wrong; the call had no effect."""

    status = _abi.DIST_ERR_INVALID_ARGUMENT


class InvalidHandle(Error):
    """The object was released, or its group has ended."""

    status = _abi.DIST_ERR_INVALID_HANDLE


class NotInitialized(Error):
    """`init` was not called, `finalize` was called, or this process is a forked child."""

    status = _abi.DIST_ERR_NOT_INITIALIZED


class AlreadyInitialized(Error):
    """`init` was called twice."""

    status = _abi.DIST_ERR_ALREADY_INITIALIZED


class Unsupported(Error, NotImplementedError):
    """The requested combination does not exist."""

    status = _abi.DIST_ERR_UNSUPPORTED


class NotFound(Error, LookupError):
    """The key, name or file does not exist."""

    status = _abi.DIST_ERR_NOT_FOUND


class QueueEmpty(Error):
    """The queue of a store is empty."""

    status = _abi.DIST_ERR_QUEUE_EMPTY


class NotANumber(Error, ValueError):
    """The value of a counter in a store is not a number."""

    status = _abi.DIST_ERR_NOT_A_NUMBER


class Timeout(Error, TimeoutError):
    """The deadline of an operation passed. After a collective, its group has failed."""

    status = _abi.DIST_ERR_TIMEOUT


class PeerFailed(Error):
    """Another rank died, left or stopped answering."""

    status = _abi.DIST_ERR_PEER_FAILED


class Mismatch(Error):
    """Ranks called different operations or gave different arguments."""

    status = _abi.DIST_ERR_MISMATCH


class Deadlock(Error):
    """Ranks wait for each other in a cycle."""

    status = _abi.DIST_ERR_DEADLOCK


class Aborted(Error):
    """A rank aborted the group."""

    status = _abi.DIST_ERR_ABORTED


class ConnectionFailed(Error, ConnectionError):
    """The store or a peer cannot be reached, or the connection broke."""

    status = _abi.DIST_ERR_CONNECTION


class AuthFailed(Error):
    """A peer could not prove that it belongs to this job."""

    status = _abi.DIST_ERR_AUTH


class OutOfMemory(Error, MemoryError):
    """Memory, or another limited resource of the host, is exhausted."""

    status = _abi.DIST_ERR_OUT_OF_MEMORY


class SystemFailure(Error):
    """The operating system refused a call."""

    status = _abi.DIST_ERR_SYSTEM


class BackendFailed(Error):
    """A back end or a custom store reported an error."""

    status = _abi.DIST_ERR_BACKEND


class InternalError(Error):
    """The library has a defect."""

    status = _abi.DIST_ERR_INTERNAL


class InProgress(Error, TimeoutError):
    """A wait ended before the operation did; the operation continues, and can be waited for."""

    status = _abi.DIST_IN_PROGRESS


class Interrupted(KeyboardInterrupt):
    """A signal (Ctrl-C) interrupted a blocking call.

    usable     whether the group, or the store, can be used further
    work       the work of the interrupted operation, which continues in the background; wait for
               it before you use the buffers of the call; None if the call had no work
    """

    def __init__(self, message: str, *, usable: bool, work: Any = None) -> None:
        super().__init__(message)
        self.usable = usable
        self.work = work


_CLASSES: dict[int, type[Error]] = {
    kind.status: kind for kind in Error.__subclasses__() if kind is not InProgress
}


def error_class(status: int) -> type[Error]:
    """Returns the exception class of a status."""
    return _CLASSES.get(status, InternalError)


def from_status(
    status: int,
    message: str,
    *,
    operation: str | None = None,
    group: int | None = None,
    work: int | None = None,
) -> Error:
    """Returns the exception of a failed call. The work or the group names the guilty rank."""
    from ._library import copied_text, lib

    culprit = _abi.dist_culprit_t(struct_size=ctypes.sizeof(_abi.dist_culprit_t))
    known = -1
    if work:
        known = lib.dist_work_culprit(work, ctypes.byref(culprit))
    elif group and status <= _abi.DIST_ERR_TIMEOUT:
        known = lib.dist_group_culprit(group, ctypes.byref(culprit))
    fields: dict[str, Any] = {}
    if known == 0 and culprit.kind != _abi.DIST_CULPRIT_NONE:
        fields["rank"] = culprit.rank
        fields["kind"] = KINDS.get(culprit.kind)
        fields["pid"] = culprit.pid or None
        fields["host"] = culprit.host.decode("utf-8", "replace") or None
    if group:
        fields["group"] = copied_text(lib.dist_group_name, group) or None
    return error_class(status)(message, status=status, operation=operation, **fields)
