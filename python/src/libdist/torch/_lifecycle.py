"""What the back ends in Python and in C++ share: state, end, and other groups."""

from __future__ import annotations

import ctypes
import os
import socket
from dataclasses import dataclass, replace
from datetime import timedelta

from torch._C import _distributed_c10d as c10d

from .. import _abi
from .._library import lib
from ..errors import PeerFailed
from ._group import NativeGroup, milliseconds
from ._threads import threads

UNSET = timedelta(milliseconds=-1)


def display_name() -> str:
    """Returns the name under which the back end appears in torch."""
    return "gloo" if os.environ.get("LIBDIST_AS_GLOO") == "1" else "libdist"


@dataclass(frozen=True)
class Settings:
    """Options of the back end, for `pg_options` of torch's functions.

    backend          the back end of the library; None chooses by the memory of the tensors
    backend_options  options of that back end, "key=value;key=value"
    canonical        reduces in the order of ranks, so that placements do not change results
    device           the GPU of this rank; None for torch's current device, if there is one
    interruptible    whether Ctrl-C interrupts a synchronous call within 100 ms. Without it, a
                     signal waits for the end of the call, and small calls are faster. By default,
                     only the subclass in Python interrupts calls.
    """

    backend: str | None = None
    backend_options: str | None = None
    canonical: bool = False
    device: int | None = None
    interruptible: bool | None = None


def settings_of(options, device) -> Settings:
    """Returns the settings in the argument `pg_options` of the program."""
    found = options if isinstance(options, Settings) else Settings()
    if isinstance(options, dict):
        found = Settings(**options)
    if found.device is None and device is not None and device.type == "cuda":
        found = replace(found, device=device.index)
    return found


class Lifecycle:
    """Owns a group of the library on behalf of a back end of torch."""

    def __init__(self, group: NativeGroup, settings: Settings, store, name: str = ""):
        self.group = group
        self.settings = settings
        self.store = store
        self.uid = name
        self._abort_hooks = {}
        group.on_failure = self._report_failure

    def backend_over(self, group: NativeGroup, store, name: str):
        """Makes the back end of another group."""
        raise NotImplementedError

    def native_group(self):
        """Returns the group of the library."""
        return self.group

    # State.

    def monitored_barrier(self, opts, wait_all_ranks=False):
        """Waits for all ranks, or names the ranks that have not called.

        `opts` is a time-out, or torch's options with one.
        """
        timeout = getattr(opts, "timeout", opts)
        group = self.group
        limit_ms = int(timeout.total_seconds() * 1000)
        if timeout == UNSET:
            limit_ms = milliseconds(group.timeout)
        missing = (ctypes.c_int32 * group.size)()
        count = ctypes.c_size_t(group.size)
        status = lib.dist_monitored_barrier(
            group.handle,
            limit_ms if limit_ms > 0 else _abi.DIST_NO_WAIT,
            int(wait_all_ranks),
            missing,
            ctypes.byref(count),
        )
        if status == _abi.DIST_OK:
            return
        names = list(missing[: count.value])
        error = group.error_of_call(status, "monitored_barrier")
        error.message = f"{_barrier_text(group.rank, names, limit_ms)}\n{error.message}"
        error.args = (error.message,)
        raise error

    # State.

    @property
    def options(self):
        """torch's options of the group."""
        options = c10d.Backend.Options(display_name(), self.group.timeout)
        if hasattr(options, "group_name"):
            options.group_name = self.uid
        return options

    def set_timeout(self, timeout):
        """Sets the time-out of later operations."""
        status = lib.dist_group_set_timeout(self.group.handle, milliseconds(timeout))
        if status != _abi.DIST_OK:
            raise self.group.error_of_call(status, "set_timeout")
        self.group.timeout = timeout

    def get_error(self):
        """Returns whether the group has failed, and the kind of failure."""
        kinds = c10d.ErrorType
        if self.group.handle is None or not self.group.error_text():
            return kinds.SUCCESS
        if self.group.timed_out():
            return kinds.TIMEOUT
        return kinds.REMOTE_ERROR

    # End.

    def abort(self):
        """Fails the group on all ranks."""
        self._run_abort_hooks()
        if self.group.handle is not None:
            self.group.abort("torch called abort")

    def shutdown(self):
        """Leaves the group."""
        self.group.release()

    def register_abort_hook(self, hook_id, hook):
        """Calls `hook` before the group is aborted, and after its first failure."""
        self._abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id):
        """Withdraws a hook."""
        self._abort_hooks.pop(hook_id, None)

    def _report_failure(self):
        # A hook may take long, and the program waits for its error.
        if self._abort_hooks:
            threads.submit(self._run_abort_hooks)

    def _run_abort_hooks(self):
        for hook in list(self._abort_hooks.values()):
            hook()

    # Other groups.

    def split(self, store, ranks, opts):
        """Creates a group of some ranks, which all call this."""
        if self.group.rank not in ranks:
            return None
        name = getattr(opts, "group_name", "") or f"{self.uid}:split"
        timeout = getattr(opts, "_timeout", None) or self.group.timeout
        group = NativeGroup.create(
            store, list(ranks).index(self.group.rank), len(ranks), name, timeout, self.settings
        )
        return self.backend_over(group, store, name)

    def merge(self, store, opts, rank, size):
        """Creates a group of ranks that may have no group in common."""
        name = getattr(opts, "group_name", "") or "merged"
        timeout = getattr(opts, "_timeout", None) or self.group.timeout
        group = NativeGroup.create(store, rank, size, name, timeout, self.settings)
        return self.backend_over(group, store, name)

    def shrink(self, ranks_to_exclude, _shrink_flags=0, _opts_override=None):
        """Creates a group without some ranks; all other ranks call this."""
        group = self.group.shrink()
        expected = self.group.size - len(ranks_to_exclude)
        if group.size != expected:
            size = group.size
            group.release()
            raise PeerFailed(
                f"shrink: the new group has {size} ranks instead of {expected}: another rank has "
                "failed; call libdist.torch.shrink, which finds the remaining ranks"
            )
        return self.backend_over(group, self.store, self.uid)

    def get_reconfigure_handle(self):
        """Returns a text that stands for this rank in `reconfigure`."""
        return f"libdist:{socket.gethostname()}:{os.getpid()}:{id(self):x}"

    def meet_again(self, opts):
        """Meets the ranks with the given handles, in a group in place of this one."""
        handles = opts.handles
        ordered = list(handles) if isinstance(handles, list) else sorted(handles)
        timeout = opts.timeout or self.group.timeout
        rank = ordered.index(self.get_reconfigure_handle())
        group = NativeGroup.create(
            self.store, rank, len(ordered), f"reconfigured-{opts.uuid}", timeout, self.settings
        )
        old, self.group = self.group, group
        group.on_failure = self._report_failure
        old.release()


def _barrier_text(rank, names, limit_ms):
    """Returns torch's sentence for a failed monitored barrier."""
    if rank == 0 and limit_ms <= 0:
        return f"Rank 0 timed out in monitoredBarrier after {limit_ms} ms."
    if rank == 0:
        word = "Rank" if len(names) == 1 else "Ranks"
        listed = ", ".join(str(name) for name in names)
        return f"[Rank 0]: {word} {listed} failed to pass monitoredBarrier in {limit_ms} ms"
    return (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
        "for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )
