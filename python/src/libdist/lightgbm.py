"""LightGBM over a group of libdist, in place of LightGBM's own sockets.

    import lightgbm
    import libdist as dist
    import libdist.lightgbm

    world = dist.init()

    def train():
        parameters = {"objective": "binary", **libdist.lightgbm.parameters(world)}
        return lightgbm.train(parameters, lightgbm.Dataset(rows_of_this_rank, labels))

    booster = libdist.lightgbm.run(world, train)

LightGBM has one network for each thread, and cannot end its training when a function that
communicates fails. Therefore `run` gives the training a thread of its own. After a failure, that
thread stops for ever inside LightGBM, and `run` raises the error.
"""

from __future__ import annotations

import ctypes
import threading
import warnings

from . import _abi
from ._library import check, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, TypeVar

    from .group import Group

    _T = TypeVar("_T")

_INT32S = ctypes.POINTER(ctypes.c_int32)

# The types of LightGBM/meta.h. LightGBM passes the reducer by reference, as an address of a pointer.
_REDUCER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int32)
_REDUCE_SCATTER = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int, _INT32S, _INT32S, ctypes.c_int,
    ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p,
)
_ALL_GATHER = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int32, _INT32S, _INT32S, ctypes.c_int, ctypes.c_void_p,
    ctypes.c_int32,
)

# The networks of threads that have stopped inside LightGBM. LightGBM still has their functions.
_stopped: list[_Network] = []


def parameters(group: Group) -> dict[str, Any]:
    """Returns the parameters of LightGBM for ranks that each have their own rows.

    Without `num_machines`, LightGBM trains on each rank alone, although there is a network.
    """
    return {"tree_learner": "data", "num_machines": group.size, "pre_partition": True}


def run(group: Group, function: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    """Calls a function whose use of LightGBM communicates over the group; returns its result.

    All ranks of the group call this. The function makes the `Dataset` and trains, in a thread of
    its own. Until it ends, no other thread uses the group. If a rank fails, `run` raises the error
    of libdist on every other rank: `PeerFailed`, for example. Ctrl-C aborts the group.
    """
    network = _Network(group)

    def body() -> None:
        try:
            network.begin()
            try:
                network.result = function(*arguments, **options)
            finally:
                network.end()
        except BaseException as error:
            network.error = error
        network.has_ended.set()

    threading.Thread(target=body, name="libdist-lightgbm", daemon=True).start()
    try:
        network.has_ended.wait()
    except BaseException as error:
        # The function goes on until its next communication, which fails.
        group.abort(f"LightGBM was interrupted by {type(error).__name__}")
        raise
    if network.error is not None:
        raise network.error
    if group.size > 1 and not network.has_reduced:
        warnings.warn(
            "libdist.lightgbm.run: LightGBM has trained on this rank alone; it needs the parameters "
            "of libdist.lightgbm.parameters", RuntimeWarning, stacklevel=2)
    return network.result  # type: ignore[no-any-return]


class _Network:
    """The network of one thread of LightGBM."""

    def __init__(self, group: Group) -> None:
        from lightgbm.basic import _LIB

        self._library = _LIB
        self._group = group
        self._reducers: dict[int, Any] = {}
        self._received = ctypes.create_string_buffer(0)
        self._pointers = ctypes.c_void_p * group.size
        self._sizes = ctypes.c_size_t * group.size
        # LightGBM has the addresses of these objects.
        self._functions = (
            _REDUCE_SCATTER(self._stopping(self._reduce_scatter)),
            _ALL_GATHER(self._stopping(self._all_gather)),
        )
        self.has_ended = threading.Event()
        self.has_reduced = False
        self.result: Any = None
        self.error: BaseException | None = None

    def begin(self) -> None:
        """Lets LightGBM communicate over the group in this thread."""
        self._check(self._library.LGBM_NetworkInitWithFunctions(
            ctypes.c_int(self._group.size), ctypes.c_int(self._group.rank), *self._functions))

    def end(self) -> None:
        """Ends LightGBM's use of the group in this thread."""
        self._check(self._library.LGBM_NetworkFree())

    def _check(self, status: int) -> None:
        if status:
            self._library.LGBM_GetLastError.restype = ctypes.c_char_p
            text = self._library.LGBM_GetLastError().decode("utf-8", "replace")
            raise RuntimeError(f"LightGBM: {text}")

    def _stopping(self, function: Callable[..., None]) -> Callable[..., None]:
        """Returns a function that stops its thread for ever in place of raising an exception.

        LightGBM takes no error from the function, and would go on with wrong data.
        """

        def call(*arguments: Any) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                _stopped.append(self)
                self.error = error
                self.has_ended.set()
                threading.Event().wait()

        return call

    def _reduce_scatter(self, source: int, _source_bytes: int, element_bytes: int, starts: Any,
                        lengths: Any, count: int, result: int, _result_bytes: int,
                        reducer: int) -> None:
        """Sends block i to rank i, and reduces the received blocks in the order of the ranks."""
        self.has_reduced = True
        sizes = lengths[:count]
        own = sizes[self._group.rank]
        if own * count > len(self._received):
            self._received = ctypes.create_string_buffer(own * count)
        first = ctypes.addressof(self._received)
        # The first block of the sum may go to its final place.
        receive = [result, *(first + i * own for i in range(1, count))]
        check(lib.dist_all_to_all_v(
            self._group._handle,
            self._pointers(*(source + start for start in starts[:count])),
            self._sizes(*sizes),
            self._pointers(*receive) if own else self._pointers(),
            self._sizes(*[own] * count),
            _abi.DIST_U8, None, None,
        ), "all_to_all_v", self._group._handle)
        if own:
            reduce = self._reducer_at(reducer)
            for block in receive[1:]:
                reduce(block, result, element_bytes, own)

    def _reducer_at(self, reference: int) -> Any:
        address = ctypes.c_void_p.from_address(reference).value
        assert address is not None
        reducer = self._reducers.get(address)
        if reducer is None:
            reducer = self._reducers[address] = _REDUCER(address)
        return reducer

    def _all_gather(self, source: int, source_bytes: int, starts: Any, lengths: Any, count: int,
                    result: int, _result_bytes: int) -> None:
        """Gives every rank the blocks of all ranks."""
        sizes = lengths[:count]
        blocks = [result + start if size else None for start, size in zip(starts[:count], sizes)]
        own = blocks[self._group.rank]
        if own is not None:
            # LightGBM passes the beginning of the result as the block if it has just been reduced.
            ctypes.memmove(own, source, source_bytes)
        check(lib.dist_all_gather_v(
            self._group._handle, own, self._pointers(*blocks), self._sizes(*sizes), _abi.DIST_U8,
            None, None,
        ), "all_gather_v", self._group._handle)
