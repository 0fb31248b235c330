"""The back end: a Python subclass of torch's class for back ends."""

from __future__ import annotations

import collections
import ctypes
import functools
from datetime import timedelta

import torch
from torch._C import _distributed_c10d as c10d

from .. import _abi
from .._library import lib, new_handle
from . import _cxx
from ._collectives import Collectives
from ._group import NativeGroup, milliseconds
from ._lifecycle import UNSET, Lifecycle, Settings, display_name, settings_of
from ._work import LibdistWork, forward_wrapped_methods

# torch's class has no constructor for subclasses in Python before the release that introduced
# them. `ProcessGroup` has one in all releases.
HAS_BACKEND_SUBCLASSES = "rank" in (c10d.Backend.__init__.__doc__ or "")

_CALL_OPTIONS_BYTES = ctypes.sizeof(_abi.dist_call_options_t)

# More works than a bucketed backward pass of an older torch has outstanding.
_KEPT_WORKS = 4096

# torch's wrapper for the debug level DETAIL does not keep the Python part of a back end alive.
_open: set[Operations] = set()


class Operations(Collectives, Lifecycle):
    """Issues operations, for a subclass of one of torch's classes."""

    # An older torch waits for the work of a synchronous call, too.
    always_returns_works = False

    def begin(self):
        """Sets the state of the operations."""
        forward_wrapped_methods()
        self._sequence = 0
        # The calls of an open coalescing block, or None.
        self._coalesced = None
        _open.add(self)

    def backend_over(self, group, store, name):
        """Makes the back end of another group."""
        return python_backend(group, self.settings, store, name)

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
        """Issues one operation. Returns its work, or None after a synchronous operation.

        The operation uses the memory of `keep` until it is done; then it calls `finish`.
        """
        if self._coalesced is not None:
            self._coalesced.append((function, arguments, opts, factor, outputs, keep, finish))
            return None
        group = self.group
        group.drain()
        if counted:
            self._sequence += 1
        recorded = _record(title, inputs)
        options = self._call_options(opts, factor, outputs or inputs)
        if recorded is None and self._may_block(opts):
            status = function(group.handle, *arguments, options, None)
            if status != _abi.DIST_OK:
                raise group.error_of_call(status, title)
            if finish is not None:
                with torch.no_grad():
                    finish(None)
            return None
        handle = new_handle()
        status = function(group.handle, *arguments, options, ctypes.byref(handle))
        if status != _abi.DIST_OK:
            if recorded is not None:
                torch.autograd._record_function_with_args_exit(recorded)
            raise group.error_of_call(status, title)
        work = LibdistWork(group, handle, title, (keep, arguments), outputs, finish, recorded)
        return self._begun(work, opts)

    def _begun(self, work, opts):
        """Returns the work of an issued operation; a synchronous call waits for it first."""
        work._sequence = self._sequence
        if not _is_synchronous(opts):
            return work
        work.wait()
        return work if self.always_returns_works else None

    def _may_block(self, opts):
        """Returns whether a call may wait inside the library, where no signal interrupts it."""
        return (
            self.settings.interruptible is False
            and not self.always_returns_works
            and _is_synchronous(opts)
        )

    def _call_options(self, opts, factor, tensors):
        """Returns a reference to the options of a call, or None if they are all the default."""
        timeout = UNSET if opts is None else opts.timeout
        on_gpu = bool(tensors) and tensors[0].is_cuda
        if timeout == UNSET and factor is None and not self.settings.canonical and not on_gpu:
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
        return ctypes.byref(options)

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
            status = function(group.handle, *arguments, options, None)
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
        if error is not None:
            work.wait()
            raise error
        return self._begun(work, opts)

    # State and end, by the names that torch looks for.

    def getBackendName(self):
        """Returns the name of the back end."""
        return display_name()

    def name(self):
        """Returns the name of the back end."""
        return display_name()

    def rank(self):
        """Returns the rank of this process in the group."""
        return self.group.rank

    def size(self):
        """Returns the number of ranks."""
        return self.group.size

    def _get_sequence_number_for_group(self):
        return self._sequence

    def _set_sequence_number_for_group(self):
        """Does nothing: numbers begin at 0 on all ranks."""

    _set_default_timeout = Lifecycle.set_timeout

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

    def shutdown(self):
        """Leaves the group."""
        Lifecycle.shutdown(self)
        _open.discard(self)

    registerAbortHook = Lifecycle.register_abort_hook
    unregisterAbortHook = Lifecycle.unregister_abort_hook

    def reconfigure(self, opts):
        """Meets the ranks with the given handles again."""
        self.meet_again(opts)
        return self.barrier(c10d.BarrierOptions())


class LibdistBackend(Operations, c10d.Backend):
    """A group of libdist as a back end of torch."""

    def __init__(self, group: NativeGroup, settings: Settings, store, name: str = ""):
        c10d.Backend.__init__(self, group.rank, group.size)
        Lifecycle.__init__(self, group, settings, store, name)
        self.begin()


class LibdistProcessGroup(Operations, c10d.ProcessGroup):
    """A group of libdist as a group of an older torch, whose back ends cannot be Python classes."""

    always_returns_works = True

    def __init__(self, group: NativeGroup, settings: Settings, store, name: str = ""):
        c10d.ProcessGroup.__init__(self, group.rank, group.size)
        Lifecycle.__init__(self, group, settings, store, name)
        self._recent = collections.deque(maxlen=_KEPT_WORKS)
        self.begin()

    def _begun(self, work, opts):
        """Returns the work of an issued operation.

        This torch does not keep the Python part of a work alive, and would wait for ever without
        it. The last works therefore stay alive.
        """
        self._recent.append(work)
        return Operations._begun(self, work, opts)

    def _start_coalescing(self, _device):
        self.start_coalescing()

    def _end_coalescing(self, _device):
        return self.end_coalescing()

    def _get_backend(self, _device):
        return self

    def _get_backend_name(self):
        return display_name()

    @property
    def _device_types(self):
        return [torch.device("cpu")]

    def _has_hooks(self):
        return False

    def _set_group_name(self, name):
        self.uid = name

    @property
    def group_name(self):
        """The name of the group in torch."""
        return self.uid

    def getGroupName(self):
        """Returns the name of the group in torch."""
        return self.uid

    def getRank(self):
        """Returns the rank of this process in the group."""
        return self.group.rank

    def getSize(self):
        """Returns the number of ranks."""
        return self.group.size


def _with_default_options(function, kind):
    """Returns the operation with torch's default options, if a call has none."""

    def method(self, *arguments, opts=None):
        if opts is None and arguments and isinstance(arguments[-1], kind):
            return function(self, *arguments)
        return function(self, *arguments, opts or kind())

    return functools.wraps(function)(method)


# The operations by the names that an older torch calls, with their options.
for _name, _function, _kind in (
    ("allreduce", Collectives.allreduce, c10d.AllreduceOptions),
    ("allreduce_coalesced", Collectives.allreduce_coalesced, c10d.AllreduceCoalescedOptions),
    ("reduce", Collectives.reduce, c10d.ReduceOptions),
    ("reduce_scatter", Collectives.reduce_scatter, c10d.ReduceScatterOptions),
    ("_reduce_scatter_base", Collectives.reduce_scatter_single, c10d.ReduceScatterOptions),
    (
        "reduce_scatter_tensor_coalesced",
        Collectives.reduce_scatter_single_coalesced,
        c10d.ReduceScatterOptions,
    ),
    ("broadcast", Collectives.broadcast, c10d.BroadcastOptions),
    ("allgather", Collectives.allgather, c10d.AllgatherOptions),
    ("_allgather_base", Collectives.all_gather_single, c10d.AllgatherOptions),
    ("allgather_coalesced", Collectives.allgather_coalesced, c10d.AllgatherOptions),
    (
        "allgather_into_tensor_coalesced",
        Collectives.all_gather_single_coalesced,
        c10d.AllgatherOptions,
    ),
    ("gather", Collectives.gather, c10d.GatherOptions),
    ("scatter", Collectives.scatter, c10d.ScatterOptions),
    ("alltoall", Collectives.alltoall, c10d.AllToAllOptions),
    ("alltoall_base", Collectives.all_to_all_single, c10d.AllToAllOptions),
    ("barrier", Collectives.barrier, c10d.BarrierOptions),
):
    setattr(LibdistProcessGroup, _name, _with_default_options(_function, _kind))


def python_backend(group, settings, store, name):
    """Makes a back end in Python, of the class that the installed torch supports."""
    kind = LibdistBackend if HAS_BACKEND_SUBCLASSES else LibdistProcessGroup
    return kind(group, settings, store, name)


def _is_synchronous(opts):
    """Returns whether a call waits for its operation. Messages have no options."""
    return opts is not None and not getattr(opts, "asyncOp", True)


def _record(title, inputs):
    """Begins a record of the profiler, if it is active."""
    if not torch.autograd._profiler_enabled():
        return None
    return torch.autograd._record_function_with_args_enter(f"{display_name()}:{title}", *inputs)


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
    # Only the subclass in Python passes the streams of a GPU to the library.
    if settings.device is None and _cxx.load() is not None:
        return _cxx.create(group, settings, options.store, options.group_id)
    return python_backend(group, settings, options.store, options.group_id)
