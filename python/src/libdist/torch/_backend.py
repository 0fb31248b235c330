"""The back end: a Python subclass of torch's class for back ends."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
from torch._C import _distributed_c10d as c10d

from .. import _abi
from .._library import lib, new_handle
from ..errors import PeerFailed
from ._collectives import Collectives
from ._group import NativeGroup, milliseconds
from ._work import LibdistWork, forward_wrapped_methods

# torch's class has no constructor for subclasses in Python before the release that introduced
# them. `ProcessGroup` has one in all releases.
HAS_BACKEND_SUBCLASSES = "rank" in (c10d.Backend.__init__.__doc__ or "")

_UNSET = timedelta(milliseconds=-1)
_CALL_OPTIONS_BYTES = ctypes.sizeof(_abi.dist_call_options_t)
_NAME = "libdist"

# torch's wrapper for the debug level DETAIL does not keep the Python part of a back end alive.
_open: set[LibdistBackend] = set()


def display_name() -> str:
    """Returns the name under which the back end appears in torch."""
    return "gloo" if os.environ.get("LIBDIST_AS_GLOO") == "1" else _NAME


@dataclass(frozen=True)
class Settings:
    """Options of the back end, for `pg_options` of torch's functions.

    backend          the back end of the library; None chooses by the memory of the tensors
    backend_options  options of that back end, "key=value;key=value"
    canonical        reduces in the order of ranks, so that placements do not change results
    device           the GPU of this rank; None for torch's current device, if there is one
    """

    backend: str | None = None
    backend_options: str | None = None
    canonical: bool = False
    device: int | None = None


def settings_of(options, device) -> Settings:
    """Returns the settings in the argument `pg_options` of the program."""
    found = options if isinstance(options, Settings) else Settings()
    if isinstance(options, dict):
        found = Settings(**options)
    if found.device is None and device is not None and device.type == "cuda":
        found = replace(found, device=device.index)
    return found


class LibdistBackend(Collectives, c10d.Backend):
    """A group of libdist as a back end of torch."""

    def __init__(self, group: NativeGroup, settings: Settings, store, name: str = ""):
        c10d.Backend.__init__(self, group.rank, group.size)
        forward_wrapped_methods()
        self.group = group
        self.settings = settings
        self._store = store
        self._uid = name
        self._sequence = 0
        # The calls of an open coalescing block of this thread, or None.
        self._coalesced = None
        self._abort_hooks = {}
        group.on_failure = self._run_abort_hooks
        _open.add(self)

    # Issue.

    def issue(
        self,
        title,
        function,
        arguments,
        opts,
        inputs,
        outputs,
        keep,
        finish=None,
        factor=None,
        counted=True,
    ):
        """Issues one operation. Returns its work, or None after a synchronous operation."""
        if self._coalesced is not None:
            self._coalesced.append((function, arguments, opts, factor, outputs, keep, finish))
            return None
        group = self.group
        group.drain()
        if counted:
            self._sequence += 1
        recorded = _record(title, inputs)
        options = self._call_options(opts, factor, outputs or inputs)
        handle = new_handle()
        status = function(
            group.handle,
            *arguments,
            None if options is None else ctypes.byref(options),
            ctypes.byref(handle),
        )
        if status != _abi.DIST_OK:
            if recorded is not None:
                torch.autograd._record_function_with_args_exit(recorded)
            raise group.error_of_call(status, title)
        work = LibdistWork(group, handle, title, (keep, arguments), outputs, finish, recorded)
        work._sequence = self._sequence
        if opts is not None and not opts.asyncOp:
            work.wait()
            return None
        return work

    def _call_options(self, opts, factor, tensors):
        """Returns the options of a call, or None if they are all the default."""
        timeout = _UNSET if opts is None else opts.timeout
        on_gpu = bool(tensors) and tensors[0].is_cuda
        if timeout == _UNSET and factor is None and not self.settings.canonical and not on_gpu:
            return None
        options = _abi.dist_call_options_t(struct_size=_CALL_OPTIONS_BYTES)
        if timeout > timedelta(0):
            options.timeout_ms = milliseconds(timeout)
        if factor is not None:
            options.premul_scale = factor
        if self.settings.canonical:
            options.flags |= _abi.DIST_CALL_CANONICAL
        if on_gpu:
            device = tensors[0].device
            stream = torch.cuda.current_stream(device)
            for tensor in tensors:
                tensor.record_stream(stream)
            options.flags |= _abi.DIST_CALL_DEVICE
            options.device = device.index
            # torch's default stream is NULL, which means another stream to the library.
            options.stream = stream.cuda_stream or 1
        return options

    # Several operations as one.

    def _together(self, title, opts, inputs, outputs, calls):
        """Issues several operations as one batch with one work."""
        outer, self._coalesced = self._coalesced, []
        try:
            for call in calls:
                call(opts)
            collected = self._coalesced
        finally:
            self._coalesced = outer
        if outer is not None:
            outer.extend(collected)
            return None
        self._sequence += 1
        return self._batch(title, opts, collected, inputs, outputs)

    def start_coalescing(self):
        """Begins to collect the operations of this group."""
        self._coalesced = []

    def end_coalescing(self):
        """Issues the collected operations, and returns the work of all."""
        collected, self._coalesced = self._coalesced or [], None
        self._sequence += 1
        outputs = [tensor for entry in collected for tensor in entry[4]]
        return self._batch("coalesced", None, collected, outputs, outputs)

    def _batch(self, title, opts, collected, inputs, outputs):
        group = self.group
        group.drain()
        recorded = _record(title, inputs)
        status = lib.dist_batch_begin(None, 0)
        if status != _abi.DIST_OK:
            raise group.error_of_call(status, title)
        error = None
        for function, arguments, own, factor, tensors, _keep, _finish in collected:
            options = self._call_options(own, factor, tensors)
            status = function(
                group.handle,
                *arguments,
                None if options is None else ctypes.byref(options),
                None,
            )
            if status != _abi.DIST_OK:
                error = error or group.error_of_call(status, title)
        handle = new_handle()
        status = lib.dist_batch_end(ctypes.byref(handle))
        if status != _abi.DIST_OK:
            raise error or group.error_of_call(status, title)
        finishes = [entry[6] for entry in collected if entry[6] is not None]

        def finish(work):
            for function in finishes:
                function(work)

        work = LibdistWork(
            group, handle, title, collected, outputs, finish if finishes else None, recorded
        )
        work._sequence = self._sequence
        if error is not None:
            work.wait()
            raise error
        if opts is not None and not opts.asyncOp:
            work.wait()
            return None
        return work

    # Barriers with names.

    def monitored_barrier(self, opts, wait_all_ranks=False):
        """Waits for all ranks, or names the ranks that have not called."""
        timeout = getattr(opts, "timeout", opts)
        group = self.group
        limit_ms = int(timeout.total_seconds() * 1000)
        if timeout == _UNSET:
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

    def getBackendName(self):  # noqa: N802 - torch's name
        """Returns the name of the back end."""
        return display_name()

    def name(self):
        """Returns the name of the back end."""
        return display_name()

    @property
    def options(self):
        """torch's options of the group."""
        options = c10d.Backend.Options(display_name(), self.group.timeout)
        if hasattr(options, "group_name"):
            options.group_name = self._uid
        return options

    def _get_sequence_number_for_group(self):
        return self._sequence

    def _set_sequence_number_for_group(self):
        """Does nothing: numbers begin at 0 on all ranks."""

    def set_timeout(self, timeout):
        """Sets the time-out of later operations."""
        status = lib.dist_group_set_timeout(self.group.handle, milliseconds(timeout))
        if status != _abi.DIST_OK:
            raise self.group.error_of_call(status, "set_timeout")
        self.group.timeout = timeout

    _set_default_timeout = set_timeout

    def get_error(self):
        """Returns whether the group has failed, and the kind of failure."""
        kinds = c10d.ErrorType
        if self.group.handle is None or not self.group.error_text():
            return kinds.SUCCESS
        if self.group.timed_out():
            return kinds.TIMEOUT
        return kinds.REMOTE_ERROR

    @property
    def supports_splitting(self):
        """Groups can be made from this group."""
        return True

    @property
    def supports_coalescing(self):
        """Several operations can be issued as one."""
        return True

    @property
    def supports_shrinking(self):
        """The remaining ranks can continue after a failure."""
        return True

    @property
    def supports_reconfigure(self):
        """The ranks can meet again with other members."""
        return True

    @property
    def supports_abort_hooks(self):
        """Functions can be called before the group is aborted."""
        return True

    def _wait_for_pending_works(self):
        """Does nothing: `shutdown` waits."""

    def _enable_collectives_timing(self):
        """Does nothing: each work has its duration."""

    # End.

    def abort(self):
        """Fails the group on all ranks."""
        self._run_abort_hooks()
        if self.group.handle is not None:
            self.group.abort("torch called abort")

    def shutdown(self):
        """Leaves the group."""
        self.group.release()
        _open.discard(self)

    def register_abort_hook(self, hook_id, hook):
        """Calls `hook` before the group is aborted, and after its first failure."""
        self._abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id):
        """Withdraws a hook."""
        self._abort_hooks.pop(hook_id, None)

    registerAbortHook = register_abort_hook  # noqa: N815 - torch's name
    unregisterAbortHook = unregister_abort_hook  # noqa: N815 - torch's name

    def _run_abort_hooks(self):
        for hook in list(self._abort_hooks.values()):
            hook()

    # Other groups.

    def split(self, store, ranks, opts):
        """Creates a group of some ranks, which all call this."""
        if self.group.rank not in ranks:
            return None
        name = getattr(opts, "group_name", "") or f"{self._uid}:split"
        timeout = getattr(opts, "_timeout", None) or self.group.timeout
        group = NativeGroup.create(
            store, list(ranks).index(self.group.rank), len(ranks), name, timeout, self.settings
        )
        return LibdistBackend(group, self.settings, store, name)

    def merge(self, store, opts, rank, size):
        """Creates a group of ranks that may have no group in common."""
        name = getattr(opts, "group_name", "") or "merged"
        timeout = getattr(opts, "_timeout", None) or self.group.timeout
        group = NativeGroup.create(store, rank, size, name, timeout, self.settings)
        return LibdistBackend(group, self.settings, store, name)

    def native_group(self):
        """Returns the group of the library."""
        return self.group

    def shrunk(self, timeout=None):
        """Creates a group of the remaining ranks, which all call this."""
        return LibdistBackend(self.group.shrink(timeout), self.settings, self._store, self._uid)

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
        return LibdistBackend(group, self.settings, self._store, self._uid)

    def get_reconfigure_handle(self):
        """Returns a text that stands for this rank in `reconfigure`."""
        return f"libdist:{os.getpid()}:{self.group.rank}:{id(self):x}"

    def reconfigure(self, opts):
        """Meets the ranks with the given handles again, in a group in place of this one."""
        handles = opts.handles
        ordered = list(handles) if isinstance(handles, list) else sorted(handles)
        timeout = opts.timeout or self.group.timeout
        rank = ordered.index(self.get_reconfigure_handle())
        group = NativeGroup.create(
            self._store, rank, len(ordered), f"reconfigured-{opts.uuid}", timeout, self.settings
        )
        old, self.group = self.group, group
        group.on_failure = self._run_abort_hooks
        old.release()
        return self.barrier(c10d.BarrierOptions())

    def rank(self):
        """Returns the rank of this process in the group."""
        return self.group.rank

    def size(self):
        """Returns the number of ranks."""
        return self.group.size


def _record(title, inputs):
    """Begins a record of the profiler, if it is active."""
    if not torch.autograd._profiler_enabled():
        return None
    return torch.autograd._record_function_with_args_enter(f"{display_name()}:{title}", *inputs)


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


def create(options, pg_options):
    """Creates the back end of a new group, for torch's registry of back ends."""
    process_group = getattr(options, "process_group", None)
    device = getattr(process_group, "bound_device_id", None)
    settings = settings_of(pg_options, device)
    group = NativeGroup.create(
        options.store,
        options.group_rank,
        options.group_size,
        options.group_id or "default",
        options.timeout,
        settings,
        options.global_ranks_in_group,
    )
    return LibdistBackend(group, settings, options.store, options.group_id)


__all__ = ["HAS_BACKEND_SUBCLASSES", "LibdistBackend", "Settings", "create"]
