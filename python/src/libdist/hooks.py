"""Functions of the program that reduce the buckets of a reducer."""

from __future__ import annotations

import ctypes

from . import _abi
from .errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .group import Group

    HookFunction = Callable[[Group, "HookedBucket"], None]


class HookedBucket:
    """A bucket of gradients that a hook reduces. It is valid during the call of the hook.

    data        the gradients, one after the other with gaps, as a numpy array. The hook replaces
                them by the sum over all ranks, with the same bits on all ranks. They are already
                multiplied by the factor of this rank, such as 1/N for a mean over N ranks
    parameters  the indices of the parameters
    offsets     the index in `data` at which the gradient of each parameter begins
    index       the position of the bucket, from 0
    count       the number of buckets
    step        the number of the step, from 0
    bytes_sent  the number of bytes that the hook has sent; initially the size of `data`
    """

    def __init__(self, struct: Any, bytes_sent: int) -> None:
        from .reducer import array_at

        self.data = array_at(struct.data, (struct.count,), struct.dtype, None)
        self.parameters = list(struct.params[: struct.n_params])
        self.offsets = list(struct.offsets[: struct.n_params]) if struct.offsets else []
        self.index: int = struct.index
        self.count: int = struct.n_buckets
        self.step: int = struct.step
        self.bytes_sent = bytes_sent

    def __repr__(self) -> str:
        size, kind = self.data.size, self.data.dtype
        return f"<libdist.HookedBucket {self.index} of {self.count}, {size} of {kind}>"


class Hook:
    """A hook for the library: the function, its C form, and its last failure."""

    def __init__(self, function: HookFunction) -> None:
        self._function = function
        self.failure: BaseException | None = None
        # The library calls this object until the reducer is released.
        self.entry = _abi.dist_hook_fn(self._call)

    @property
    def name(self) -> str:
        """The name of the function, which the ranks compare."""
        function = self._function
        return str(getattr(function, "__qualname__", type(function).__qualname__))

    def _call(self, group: int, bucket: Any, bytes_sent: Any, _user: int) -> int:
        from .group import Group

        try:
            # The group is lent for the call, and nothing here releases it.
            hooked = HookedBucket(bucket.contents, bytes_sent[0])
            self._function(Group(group), hooked)
            bytes_sent[0] = hooked.bytes_sent
        except Error as error:
            self.failure = error
            return error.status
        except MemoryError as error:
            self.failure = error
            return _abi.DIST_ERR_OUT_OF_MEMORY
        except BaseException as error:  # noqa: BLE001 - a status is the only way to report it
            self.failure = error
            return _abi.DIST_ERR_SYSTEM
        self.failure = None
        return _abi.DIST_OK
