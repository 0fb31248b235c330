"""This process in the job: the world group, and the end of the interpreter."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys

from . import _abi
from ._call import blocking
from ._library import lib, milliseconds, text
from .group import Group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .store import Store

_state: dict[str, Any] = {"world": None, "pid": os.getpid()}


def init(
    init_method: str | None = None,
    *,
    backend: str | None = None,
    backend_options: str | None = None,
    store: Store | None = None,
    rank: int | None = None,
    size: int | None = None,
    timeout: float | None = None,
    connect_timeout: float | None = None,
    group_name: str | None = None,
    device: int | None = None,
) -> Group:
    """Creates the world group together with all other processes of the job, and returns it.

    `init_method` is "env://" (the default: the variables of distrun, torchrun, mpirun and srun),
    "tcp://host:port?rank=R&world_size=N" or "file:///path?rank=R&world_size=N". `store` takes its
    place. Time-outs are in seconds.
    """
    fields = _abi.DIST_FIELD_RANK if rank is not None else 0
    fields |= _abi.DIST_FIELD_DEVICE if device is not None else 0
    options = _abi.dist_init_options_t(
        struct_size=ctypes.sizeof(_abi.dist_init_options_t),
        fields=fields,
        backend=text(backend),
        init_method=text(init_method),
        store=store._handle if store is not None else None,
        rank=rank or 0,
        world_size=size or 0,
        timeout_ms=milliseconds(timeout),
        connect_timeout_ms=milliseconds(connect_timeout),
        group_name=text(group_name),
        backend_options=text(backend_options),
        device=device or 0,
    )

    def discard(_status: int) -> None:
        # The call ended after Ctrl-C: the world is of no use to anybody.
        lib.dist_finalize()

    blocking("init", None, lib.dist_init, ctypes.byref(options), usable=False, discard=discard)
    _register_exit()
    return world()


def finalize() -> None:
    """Leaves the world group. Every rank calls this when it has no more collectives to call.

    The end of the interpreter calls it, too, unless an exception ends the program.
    """
    _state["world"] = None
    blocking("finalize", None, lib.dist_finalize, usable=False)


def world() -> Group:
    """Returns the world group."""
    handle = lib.dist_world()
    group = _state["world"]
    if group is not None and group._handle == handle:
        return group  # type: ignore[no-any-return]
    if not handle:
        from .errors import NotInitialized

        raise NotInitialized("there is no world: call dist.init() first")
    group = _state["world"] = Group(handle, is_world=True)
    return group


def is_initialized() -> bool:
    """Returns whether the world group exists."""
    return bool(lib.dist_is_initialized())


def is_launched() -> bool:
    """Returns whether distrun or torchrun started this process."""
    return bool(lib.dist_is_elastic_launched())


def rank() -> int:
    """Returns this process's rank in the world."""
    return world().rank


def size() -> int:
    """Returns the number of ranks of the world."""
    return world().size


def _register_exit() -> None:
    """Lets the end of the interpreter end libdist. The last registered function runs first."""
    if not _state.get("registered"):
        _state["registered"] = True
        atexit.register(_at_exit)


def _at_exit() -> None:
    # A forked child has no world; the library refuses its calls.
    if os.getpid() != _state["pid"]:
        return
    # After an exception, the rank leaves by dying: its peers then learn of the failure at once.
    has_failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if lib.dist_is_initialized() and not has_failed:
        status = lib.dist_finalize()
        if status < 0:
            message = (lib.dist_last_error() or b"").decode("utf-8", "replace")
            print(f"libdist: at the end of the interpreter: {message}", file=sys.stderr)
    # No thread of the library may call a function of Python after this.
    lib.dist_callbacks_stop(2000)


os.register_at_fork(after_in_child=lambda: _state.update(world=None))
