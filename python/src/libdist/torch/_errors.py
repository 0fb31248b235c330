"""The errors of the library as exceptions that are also torch's exceptions."""

from __future__ import annotations

import torch.distributed as dist

from . import _package

_TorchError = getattr(dist, "DistBackendError", RuntimeError)


class Error(_package.Error, _TorchError):
    """An error of the library.

    It has the attributes status, rank, pid, host and operation; rank is -1 if the error names no
    rank.
    """

    status = -300
    rank = -1
    pid = 0
    host = ""
    operation = ""


class PeerFailed(Error):
    """A rank has failed."""


class Timeout(Error, TimeoutError):
    """Time has passed."""


class Mismatch(Error):
    """Ranks made different calls."""


class Aborted(Error):
    """The group was aborted."""


_CLASSES = {-100: Timeout, -101: PeerFailed, -102: Mismatch, -103: Aborted}


def make(status, message, culprit=None, operation="") -> Error:
    """Makes the exception of a status."""
    error = _CLASSES.get(status, Error)(message)
    error.status = status
    error.operation = operation
    if culprit is not None:
        error.rank = culprit.rank
        error.pid = culprit.pid
        error.host = culprit.host.decode("utf-8", "replace")
    return error
