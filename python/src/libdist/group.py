"""Groups of ranks: queries, new groups, and failures."""

from __future__ import annotations

import ctypes
import threading

from . import _abi, errors
from ._call import blocking, call_status
from ._library import blob_bytes, c_array, check, copied_text, lib, milliseconds, text
from .collectives import Collectives
from .messages import Messages
from .vectors import VectorCollectives
from .work import Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

    from .store import Store

_local = threading.local()


class Culprit:
    """The rank that has failed a group."""

    __slots__ = ("host", "kind", "pid", "rank")

    def __init__(self, struct: _abi.dist_culprit_t) -> None:
        self.rank: int = struct.rank
        self.kind: str = errors.KINDS[struct.kind]
        self.pid: int | None = struct.pid or None
        self.host: str | None = struct.host.decode("utf-8", "replace") or None

    def __repr__(self) -> str:
        return f"<rank {self.rank} {self.kind}, process {self.pid} on {self.host}>"


class Group(Collectives, VectorCollectives, Messages):
    """Ranks that communicate with each other. Any thread may use a group.

    Make groups with `dist.world`, `new`, `split`, `shrink` and `Group.create`.
    """

    def __init__(self, handle: int, *, is_world: bool = False) -> None:
        self._handle = handle
        self._is_world = is_world
        self.rank: int = lib.dist_get_rank(handle)
        self.size: int = lib.dist_get_world_size(handle)

    @classmethod
    def create(
        cls,
        store: Store,
        rank: int,
        size: int,
        name: str,
        *,
        backend: str | None = None,
        backend_options: str | None = None,
        timeout: float | None = None,
        connect_timeout: float | None = None,
        global_ranks: Sequence[int] | None = None,
        device: int | None = None,
    ) -> Group:
        """Creates a group whose ranks meet through a store, independently of `dist.init`."""
        ranks = None if global_ranks is None else c_array(ctypes.c_int32, global_ranks)
        options = _abi.dist_group_options_t(
            struct_size=ctypes.sizeof(_abi.dist_group_options_t),
            fields=_abi.DIST_FIELD_RANK | (_abi.DIST_FIELD_DEVICE if device is not None else 0),
            store=store._handle,
            rank=rank,
            world_size=size,
            backend=text(backend),
            name=text(name),
            timeout_ms=milliseconds(timeout),
            connect_timeout_ms=milliseconds(connect_timeout),
            backend_options=text(backend_options),
            global_ranks=ranks,
            n_global_ranks=len(global_ranks) if global_ranks is not None else 0,
            device=device or 0,
        )
        group = cls._made("create", None, lib.dist_group_create, ctypes.byref(options),
                          keep=(options, ranks, store))
        assert group is not None
        return group

    @classmethod
    def _made(cls, name: str, parent: int | None, function: Any, *arguments: Any,
              keep: Any = None) -> Group | None:
        """Calls a function that makes a group. Returns None if this rank is no member."""
        out = ctypes.c_void_p()

        def discard(_status: int, _keep: Any = keep) -> None:
            # The call has ended after Ctrl-C, and nobody has the group.
            lib.dist_group_release(out.value)

        blocking(name, parent, function, *arguments, ctypes.byref(out), discard=discard)
        return cls(out.value) if out.value else None

    def new(
        self,
        ranks: Sequence[int] | None = None,
        *,
        name: str | None = None,
        backend: str | None = None,
        backend_options: str | None = None,
        timeout: float | None = None,
        connect_timeout: float | None = None,
        use_local_synchronization: bool = False,
    ) -> Group | None:
        """Creates a group of some ranks, in this order; None for all ranks of this group.

        All ranks of this group call; a rank that is no member gets None. With
        `use_local_synchronization`, only the members call.
        """
        options = _new_options(name, backend, backend_options, timeout, connect_timeout)
        options.use_local_synchronization = int(use_local_synchronization)
        listed = c_array(ctypes.c_int32, ranks) if ranks else None
        if ranks is not None and not ranks:
            raise ValueError("new: the list of ranks is empty")
        return self._made("new", self._handle, lib.dist_group_new, self._handle, listed,
                          len(ranks) if ranks else 0, ctypes.byref(options), keep=(options, listed))

    def split(
        self,
        color: int | None,
        key: int = 0,
        *,
        name: str | None = None,
        backend: str | None = None,
        backend_options: str | None = None,
        timeout: float | None = None,
        connect_timeout: float | None = None,
    ) -> Group | None:
        """Splits this group into one group for each color; the color None is no new group."""
        options = _new_options(name, backend, backend_options, timeout, connect_timeout)
        number = _abi.DIST_NO_COLOR if color is None else color
        return self._made("split", self._handle, lib.dist_group_split, self._handle, number, key,
                          ctypes.byref(options), keep=options)

    def shrink(self, *, timeout: float | None = None,
               connect_timeout: float | None = None) -> Group:
        """Creates a group of the remaining ranks of this failed group.

        Each remaining rank calls after its calls have failed. `timeout` (10 s) is the time within
        which every rank must call. This group stays failed: release it, or call `dist.finalize`
        if it is the world.
        """
        options = _abi.dist_shrink_options_t(
            struct_size=ctypes.sizeof(_abi.dist_shrink_options_t),
            timeout_ms=milliseconds(timeout),
            connect_timeout_ms=milliseconds(connect_timeout),
        )
        group = self._made("shrink", self._handle, lib.dist_group_shrink, self._handle,
                           ctypes.byref(options), keep=options)
        assert group is not None
        return group

    def abort(self, reason: str = "") -> None:
        """Fails this group on all its ranks, with a reason. Any thread may call this."""
        check(lib.dist_group_abort(self._handle, text(reason)), "abort")

    def release(self) -> None:
        """Leaves this group. `dist.finalize` leaves the world."""
        if self._is_world:
            raise ValueError("release: dist.finalize() ends the world")
        handle, self._handle = self._handle, 0
        if handle:
            call_status("release", None, lib.dist_group_release(handle))

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    @property
    def name(self) -> str:
        return copied_text(lib.dist_group_name, self._handle)

    @property
    def backend(self) -> str:
        """The name of the back end with which the group was made."""
        return copied_text(lib.dist_group_backend, self._handle)

    @property
    def error(self) -> str | None:
        """The message of the error that has failed this group; None while it is usable."""
        return copied_text(lib.dist_group_error, self._handle) or None

    @property
    def culprit(self) -> Culprit | None:
        """The rank that has failed this group; None if the error names no rank."""
        struct = _abi.dist_culprit_t(struct_size=ctypes.sizeof(_abi.dist_culprit_t))
        check(lib.dist_group_culprit(self._handle, ctypes.byref(struct)), "culprit")
        return Culprit(struct) if struct.kind != _abi.DIST_CULPRIT_NONE else None

    @property
    def timeout(self) -> float | None:
        """The default time-out of operations in seconds; None for no limit."""
        value = lib.dist_group_get_timeout(self._handle)
        return None if value == _abi.DIST_WAIT_FOREVER else value / 1000

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        value = _abi.DIST_WAIT_FOREVER if seconds is None else milliseconds(seconds)
        check(lib.dist_group_set_timeout(self._handle, value), "timeout")

    @property
    def sequence(self) -> int:
        """The number of collectives that this rank has issued on this group."""
        return lib.dist_group_sequence(self._handle)

    @property
    def local_rank(self) -> int:
        """This rank's position among the ranks on its host."""
        return lib.dist_group_local_rank(self._handle)

    @property
    def local_size(self) -> int:
        """The number of ranks on this rank's host."""
        return lib.dist_group_local_size(self._handle)

    @property
    def host_index(self) -> int:
        """The number of this rank's host among the hosts of the group."""
        return lib.dist_group_host_index(self._handle)

    @property
    def host_count(self) -> int:
        """The number of hosts of the group."""
        return lib.dist_group_host_count(self._handle)

    @property
    def ranks(self) -> list[int]:
        """For each rank, the rank of the same process in the outermost group."""
        out = (ctypes.c_int32 * self.size)()
        count = lib.dist_group_ranks(self._handle, out, self.size)
        return list(out[:count])

    def rank_from_global(self, rank: int) -> int | None:
        """Converts a rank of the outermost group; None if this group does not contain it."""
        value = lib.dist_group_rank_from_global(self._handle, rank)
        return None if value < 0 else value

    def rank_to_global(self, rank: int) -> int | None:
        """Converts a rank of this group to its rank in the outermost group."""
        value = lib.dist_group_rank_to_global(self._handle, rank)
        return None if value < 0 else value

    def describe(self) -> dict[str, Any]:
        """Describes this group: members, back end, algorithms, failure and arrival skew."""
        return self._json("describe", lib.dist_group_describe)

    def flight_record(self) -> dict[str, Any]:
        """Returns the flight recorder's records of operations and groups."""
        return self._json("flight_record", lib.dist_flight_recorder_dump)

    def _json(self, name: str, function: Any) -> dict[str, Any]:
        import json

        out = ctypes.c_void_p()
        call_status(name, self._handle, function(self._handle, ctypes.byref(out)))
        value: dict[str, Any] = json.loads(blob_bytes(out.value))
        return value

    def empty(self, shape: Any, dtype: Any = "f32") -> Any:
        """Allocates an array in memory that other ranks of the host access without a copy."""
        from .memory import empty

        return empty(shape, dtype, group=self)

    def fileno(self) -> int:
        """A descriptor that is readable while done works have not been taken (`take_done`)."""
        descriptor = lib.dist_group_fd(self._handle)
        if descriptor < 0:
            check(_abi.DIST_ERR_SYSTEM, "fileno", self._handle)
        return descriptor

    def _batch(self) -> Any:
        return getattr(_local, "batch", None)

    def __repr__(self) -> str:
        if not self._handle or self.size < 0:
            return "<libdist.Group, ended>"
        return f"<libdist.Group {self.name!r}, rank {self.rank} of {self.size}>"


def _new_options(name: str | None, backend: str | None, backend_options: str | None,
                 timeout: float | None,
                 connect_timeout: float | None) -> _abi.dist_group_new_options_t:
    return _abi.dist_group_new_options_t(
        struct_size=ctypes.sizeof(_abi.dist_group_new_options_t),
        name=text(name),
        backend=text(backend),
        backend_options=text(backend_options),
        timeout_ms=milliseconds(timeout),
        connect_timeout_ms=milliseconds(connect_timeout),
    )


class Batch:
    """Collects calls and issues them together at its end.

        with dist.batch():
            for x in arrays:
                world.all_reduce(x)

    Inside the batch, no call blocks, and their results are there after the `with` statement. With
    `wait=False`, `work` is then the work of the whole batch.
    """

    def __init__(self, wait: bool = True) -> None:
        self._wait = wait
        self._keep: list[Any] = []
        self.work: Work | None = None

    def add(self, *keep: Any) -> None:
        """Keeps the buffers of a call alive until the batch has ended."""
        self._keep.append(keep)

    def __enter__(self) -> Batch:
        check(lib.dist_batch_begin(None, 0), "batch")
        _local.batch = self
        return self

    def __exit__(self, kind: Any, *_error: Any) -> None:
        _local.batch = None
        handle = ctypes.c_void_p()
        status = lib.dist_batch_end(ctypes.byref(handle))
        if handle.value is not None:
            self.work = Work(handle.value, "batch", None, self._keep)
        if kind is None:
            call_status("batch", None, status)
            if self._wait and self.work is not None:
                self.work.wait()


def batch(wait: bool = True) -> Batch:
    """Begins a batch of this thread, for a `with` statement."""
    return Batch(wait)
