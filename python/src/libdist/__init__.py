"""libdist: collective communication between the processes of a training job.

    import numpy
    import libdist as dist

    dist.init()
    gradients = numpy.ones(3)
    dist.world().all_reduce(gradients)

See docs/python.md in the repository of libdist.
"""

from __future__ import annotations


from . import _abi
from ._library import lib as _lib
from ._wait import set_interruptible
from .errors import (
    Aborted,
    AlreadyInitialized,
    AuthFailed,
    BackendFailed,
    ConnectionFailed,
    Deadlock,
    Error,
    InProgress,
    InternalError,
    Interrupted,
    InvalidArgument,
    InvalidHandle,
    Mismatch,
    NotANumber,
    NotFound,
    NotInitialized,
    OutOfMemory,
    PeerFailed,
    QueueEmpty,
    SystemFailure,
    Timeout,
    Unsupported,
)
from .group import Batch, Culprit, Group, batch
from .memory import empty
from .messages import Message, Status
from .process import finalize, init, is_initialized, is_launched, rank, size, world
from .work import Work, wait_all, wait_any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .diagnostics import (
        set_debug_level, set_log_callback, set_log_level, trace_start, trace_stop,
    )
    from .operators import Operator
    from .outer import OuterOptimizer
    from .reducer import Parameter, Reducer
    from .sampler import Sampler
    from .shard import Shard
    from ._spawn import spawn
    from .custom_store import CustomStore
    from .store import FileStore, HashStore, PrefixStore, Store, TcpStore

__version__: str = (_lib.dist_version_string() or b"").decode()

# Operators.
SUM = _abi.DIST_SUM
PRODUCT = _abi.DIST_PRODUCT
MIN = _abi.DIST_MIN
MAX = _abi.DIST_MAX
AVG = _abi.DIST_AVG
BAND = _abi.DIST_BAND
BOR = _abi.DIST_BOR
BXOR = _abi.DIST_BXOR
PREMUL_SUM = _abi.DIST_PREMUL_SUM

# Ranks and tags of messages.
ANY_SOURCE = _abi.DIST_ANY_SOURCE
ANY_TAG = _abi.DIST_ANY_TAG

# Flags of calls.
CANONICAL = _abi.DIST_CALL_CANONICAL
CHECK_NAN = _abi.DIST_CALL_CHECK_NAN
CHECK_INF = _abi.DIST_CALL_CHECK_INF
SYNCHRONOUS = _abi.DIST_CALL_SYNCHRONOUS

# Names that are imported when they are used first, so that `import libdist` stays fast.
_LAZY = {
    "CustomStore": "custom_store",
    "FileStore": "store",
    "HashStore": "store",
    "Operator": "operators",
    "OuterOptimizer": "outer",
    "Parameter": "reducer",
    "PrefixStore": "store",
    "Reducer": "reducer",
    "Sampler": "sampler",
    "Shard": "shard",
    "Store": "store",
    "TcpStore": "store",
    "set_debug_level": "diagnostics",
    "set_log_callback": "diagnostics",
    "set_log_level": "diagnostics",
    "spawn": "_spawn",
    "trace_start": "diagnostics",
    "trace_stop": "diagnostics",
}
_SUBMODULES = {"diagnostics", "lightgbm", "objects", "operators", "ray", "torch", "torchft"}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'libdist' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_SUBMODULES})
