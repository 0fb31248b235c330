"""The average of a model's gradients over the ranks, while they are computed."""

from __future__ import annotations

import ctypes
import math

from . import _abi, _buffers, _dtypes, _wait, hooks
from ._call import blocking, call_status
from ._library import blob_bytes, blob_list, c_array, lib, milliseconds, text
from .errors import Error
from .work import Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Mapping, Sequence

    from .group import Group
    from .hooks import HookFunction

DIVIDE = {
    "world": _abi.DIST_DIVIDE_WORLD,
    "none": _abi.DIST_DIVIDE_NONE,
    "initial": _abi.DIST_DIVIDE_INITIAL,
    "weighted": _abi.DIST_DIVIDE_WEIGHTED,
}
MISSING = {
    "error": _abi.DIST_MISSING_ERROR,
    "zero": _abi.DIST_MISSING_ZERO,
    "skip": _abi.DIST_MISSING_SKIP,
}
FLAGS = {
    "retryable": _abi.DIST_REDUCER_RETRYABLE,
    "canonical": _abi.DIST_REDUCER_CANONICAL,
    "fixed_layout": _abi.DIST_REDUCER_FIXED_LAYOUT,
    "move_grads": _abi.DIST_REDUCER_MOVE_GRADS,
    "static_graph": _abi.DIST_REDUCER_STATIC_GRAPH,
    "broadcast_buffers": _abi.DIST_REDUCER_BROADCAST_BUFFERS,
    "uneven": _abi.DIST_REDUCER_UNEVEN,
    "no_broadcast": _abi.DIST_REDUCER_NO_BROADCAST,
    "sharded": _abi.DIST_REDUCER_SHARDED,
    "share_grads": _abi.DIST_REDUCER_SHARE_GRADS,
}
WHAT = {
    "params": _abi.DIST_REDUCER_PARAMS,
    "buffers": _abi.DIST_REDUCER_BUFFERS,
    "grads": _abi.DIST_REDUCER_GRADS,
}

# The votes on a step.
COMMIT = _abi.DIST_VOTE_COMMIT
NON_FINITE = _abi.DIST_VOTE_NON_FINITE
SKIP = _abi.DIST_VOTE_SKIP
ERROR = _abi.DIST_VOTE_ERROR


class _StepWork(Work):
    """The end of a step."""

    __slots__ = ("_reducer",)
    _reducer: Reducer

    def _error(self, status: int, message: str | None = None) -> Error:
        error = super()._error(status, message)
        error.__cause__ = self._reducer.hook_failure
        return error


class Parameter:
    """A parameter of a model: its name, its values, and optionally memory for its gradient.

    Without `grad`, the reducer provides the memory (`Reducer.grad`), and reduces without copies.
    """

    def __init__(self, name: str, data: Any, grad: Any = None, *, grad_dtype: Any = None,
                 frozen: bool = False, buffer: bool = False, sparse_rows: bool = False,
                 tag: int = 0) -> None:
        self.name = name
        self.data = data
        self.grad = grad
        self.grad_dtype = grad_dtype
        self.flags = (
            (_abi.DIST_PARAM_FROZEN if frozen else 0)
            | (_abi.DIST_PARAM_BUFFER if buffer else 0)
            | (_abi.DIST_PARAM_SPARSE_ROWS if sparse_rows else 0)
        )
        self.tag = tag


def parameter_structs(parameters: Sequence[Parameter]) -> tuple[Any, list[Any]]:
    """Returns the parameters for the library, and the objects that must live as long."""
    structs = (_abi.dist_param_t * max(1, len(parameters)))()
    keep: list[Any] = [structs]
    for struct, parameter in zip(structs, parameters):
        data = _buffers.write(parameter.data, parameter.name)
        shape = c_array(ctypes.c_int64, data.shape)
        keep += [data, shape]
        struct.struct_size = ctypes.sizeof(_abi.dist_param_t)
        struct.name = parameter.name.encode()
        struct.data = data.address
        struct.shape = shape
        struct.n_shape = len(data.shape)
        struct.count = data.count
        struct.dtype = data.dtype
        if parameter.grad_dtype is not None:
            struct.grad_dtype = _dtypes.dtype_number(parameter.grad_dtype)
        if parameter.grad is not None:
            grad = _buffers.write(parameter.grad, f"the gradient of {parameter.name}")
            if grad.count != data.count:
                raise ValueError(f"the gradient of {parameter.name} has another length")
            keep.append(grad)
            struct.grad = grad.address
            struct.grad_dtype = grad.dtype
        if data.device is not None:
            struct.fields = _abi.DIST_FIELD_DEVICE
            struct.device = data.device
        struct.flags = parameter.flags
        struct.tag = parameter.tag
    return structs, keep


def _sum_of(names: str | Iterable[str], known: dict[str, int], what: str) -> int:
    listed = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in listed if name not in known]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no {what}; known are {', '.join(known)}")
    return sum(known[name] for name in set(listed))


class Reducer:
    """Averages the gradients of a model over the ranks of a group.

        reducer = dist.Reducer(world, [dist.Parameter("w", weights)])
        reducer.begin()
        reducer.grad(0)[...] = gradient_of_w
        reducer.ready(0)
        reducer.end()
        weights -= 0.1 * reducer.result(0)

    `parameters` is a sequence of `Parameter`, or a dict of names and arrays. `flags` has names
    from `libdist.reducer.FLAGS`, for example "retryable". Release the reducer before its group.
    """

    _handle: int = 0

    def __init__(
        self,
        group: Group,
        parameters: Sequence[Parameter] | Mapping[str, Any],
        *,
        flags: str | Iterable[str] = (),
        divide: str = "world",
        missing: str = "error",
        bucket_bytes: int = 0,
        first_bucket_bytes: int = 0,
        timeout: float | None = None,
        layout: bytes | None = None,
        name: str | None = None,
        hook: str | HookFunction | None = None,
        hook_settings: str | None = None,
        stream: int | None = None,
    ) -> None:
        if hasattr(parameters, "items"):
            parameters = [Parameter(name, data) for name, data in parameters.items()]
        self.parameters = list(parameters)
        structs, self._keep = parameter_structs(self.parameters)
        held = ctypes.create_string_buffer(layout, len(layout)) if layout else None
        self._hook = hooks.Hook(hook) if callable(hook) else None
        options = _abi.dist_reducer_options_t(
            struct_size=ctypes.sizeof(_abi.dist_reducer_options_t),
            flags=_sum_of(flags, FLAGS, "flag of a reducer"),
            bucket_bytes=bucket_bytes,
            first_bucket_bytes=first_bucket_bytes,
            divide=_sum_of(divide, DIVIDE, "way to divide"),
            missing=_sum_of(missing, MISSING, "way to treat missing gradients"),
            timeout_ms=milliseconds(timeout),
            layout=ctypes.addressof(held) if held is not None else None,
            layout_bytes=len(layout) if layout else 0,
            name=text(name),
            stream=stream,
            hook=text(hook if self._hook is None else self._hook.name),
            hook_settings=text(hook_settings),
        )
        if self._hook is not None:
            options.hook_function = self._hook.entry
        out = ctypes.c_void_p()
        keep = (held, self._keep, self._hook)

        def discard(_status: int, _keep: Any = keep) -> None:
            lib.dist_reducer_release(out.value)

        blocking("Reducer", group._handle, lib.dist_reducer_create, group._handle, structs,
                 len(self.parameters), ctypes.byref(options), ctypes.byref(out), discard=discard)
        assert out.value is not None
        self._handle = out.value
        self._group = group
        self._on_bucket: Any = None
        self._rows: list[Any] = []

    def _index(self, parameter: int | str) -> int:
        if isinstance(parameter, int):
            return parameter
        for index, known in enumerate(self.parameters):
            if known.name == parameter:
                return index
        raise KeyError(parameter)

    def grad(self, parameter: int | str) -> Any:
        """Returns the array to which the program writes a gradient, as a numpy array."""
        return self._array("grad", lib.dist_reducer_grad, parameter)

    def result(self, parameter: int | str) -> Any:
        """Returns the array of a reduced gradient after the end of a step."""
        return self._array("result", lib.dist_reducer_result, parameter)

    def _array(self, name: str, function: Any, parameter: int | str) -> Any:
        index = self._index(parameter)
        address, count = ctypes.c_void_p(), ctypes.c_size_t()
        status = function(self._handle, index, ctypes.byref(address), ctypes.byref(count))
        call_status(name, self._group._handle, status)
        known = self.parameters[index]
        if known.grad is not None and name == "grad":
            return known.grad
        source = known.grad if known.grad is not None else known.data
        shape = _buffers.read(known.data).shape
        dtype = _buffers.read(source).dtype
        if known.grad is None and known.grad_dtype is not None:
            dtype = _dtypes.dtype_number(known.grad_dtype)
        return array_at(address.value, shape, dtype, self)

    def rows(self, parameter: int | str) -> tuple[Any, Any]:
        """Returns copies of the reduced rows of a sparse gradient: the indices and the rows."""
        index = self._index(parameter)
        rows, values, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        status = lib.dist_reducer_rows(self._handle, index, ctypes.byref(rows),
                                       ctypes.byref(values), ctypes.byref(count))
        call_status("rows", self._group._handle, status)
        data = _buffers.read(self.parameters[index].data)
        shape = (count.value, *data.shape[1:])
        return (
            array_at(rows.value, (count.value,), _abi.DIST_I64, self).copy(),
            array_at(values.value, shape, self._grad_type(index, data), self).copy(),
        )

    def _grad_type(self, index: int, data: _buffers.Buffer) -> int:
        chosen = self.parameters[index].grad_dtype
        return data.dtype if chosen is None else _dtypes.dtype_number(chosen)

    def begin(self, weight: float = 1.0, *, sync: bool = True) -> None:
        """Begins a step. Without `sync`, the gradients stay on this rank, to be added up."""
        flags = 0 if sync else _abi.DIST_STEP_NO_SYNC
        self._rows.clear()
        blocking("begin", self._group._handle, lib.dist_reducer_begin, self._handle, weight, flags)

    def ready(self, *parameters: int | str) -> None:
        """Marks gradients as complete; the library may reduce them in the background."""
        if len(parameters) == 1:
            status = lib.dist_reducer_ready(self._handle, self._index(parameters[0]))
        else:
            indices = c_array(ctypes.c_size_t, [self._index(it) for it in parameters])
            status = lib.dist_reducer_ready_many(self._handle, indices, len(parameters))
        call_status("ready", self._group._handle, status)

    def ready_rows(self, parameter: int | str, rows: Any, values: Any) -> None:
        """Marks a sparse gradient as complete, and passes its rows."""
        indices = _buffers.read(rows, "rows")
        if indices.dtype != _abi.DIST_I64:
            raise TypeError("ready_rows: the indices of rows are 64-bit integers")
        data = _buffers.read(values, "values")
        # The rows are borrowed until the end of the step.
        self._rows.append((indices, data))
        status = lib.dist_reducer_ready_rows(
            self._handle, self._index(parameter),
            ctypes.cast(indices.address, ctypes.POINTER(ctypes.c_int64)), data.address,
            indices.count,
        )
        call_status("ready_rows", self._group._handle, status)

    def unused(self, parameter: int | str) -> None:
        """Marks a parameter that this rank does not use in the step."""
        status = lib.dist_reducer_unused(self._handle, self._index(parameter))
        call_status("unused", self._group._handle, status)

    def end(self, vote: int = COMMIT, *, wait: bool = True) -> Any:
        """Ends a step, and returns the votes of all ranks, combined by bitwise or.

        If the result is not `COMMIT` (0), skip the update. `wait=False` returns a `Work`. The
        error of a step whose hook has raised an exception has that exception as its cause.
        """
        try:
            return self._end(vote, wait)
        except Error as error:
            error.__cause__ = error.__cause__ or self.hook_failure
            raise

    def _end(self, vote: int, wait: bool) -> Any:
        votes, handle = ctypes.c_uint64(), ctypes.c_void_p()
        group = self._group._handle
        if wait and (self._on_bucket is not None or not _wait.is_sliced()):
            # Only the blocking call waits for the functions of `on_bucket`, too.
            blocking("end", group, lib.dist_reducer_end, self._handle, vote, ctypes.byref(votes),
                     None)
            return votes.value
        status = lib.dist_reducer_end(self._handle, vote, ctypes.byref(votes),
                                      ctypes.byref(handle))
        call_status("end", group, status)
        assert handle.value is not None
        work = _StepWork(handle.value, "end", group, (votes, self), lambda: votes.value)
        work._reducer = self
        return work.wait() if wait else work

    @property
    def hook_failure(self) -> BaseException | None:
        """The exception of the last call of the hook, or None."""
        return None if self._hook is None else self._hook.failure

    def clip(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scales the gradients so that their norm is at most `max_norm`; returns the old norm."""
        norm = ctypes.c_double()
        blocking("clip", self._group._handle, lib.dist_reducer_clip, self._handle, max_norm,
                 norm_type, ctypes.byref(norm))
        return norm.value

    def norm(self, norm_type: float = 2.0) -> float:
        """Returns the norm of all gradients of the last step."""
        return self.clip(math.inf, norm_type)

    def join(self) -> int:
        """Takes part in the steps of the others after this rank has run out of data."""
        steps = ctypes.c_uint64()
        blocking("join", self._group._handle, lib.dist_reducer_join, self._handle,
                 ctypes.byref(steps))
        return steps.value

    def broadcast(self, what: str | Iterable[str] = "params", *, root: int = 0) -> None:
        """Copies the "params" or "buffers" of one rank to all ranks."""
        blocking("broadcast", self._group._handle, lib.dist_reducer_broadcast, self._handle, root,
                 _sum_of(what, WHAT, "kind of values"))

    def check(self, what: str | Iterable[str] = "params") -> list[str]:
        """Compares values over the ranks; returns a text for each parameter that differs."""
        out = ctypes.c_void_p()
        blocking("check", self._group._handle, lib.dist_reducer_check, self._handle,
                 _sum_of(what, WHAT, "kind of values"), ctypes.byref(out))
        return [it.decode("utf-8", "replace") for it in blob_list(out.value)]

    def regroup(self, group: Group) -> None:
        """Continues in another group, for instance in the result of `shrink`.

        With the flag "retryable", a failed step is open again: call `end` again.
        """
        blocking("regroup", group._handle, lib.dist_reducer_regroup, self._handle, group._handle)
        self._group = group

    def on_bucket(self, function: Callable[[Sequence[int]], None] | None) -> None:
        """Lets the library call a function with the parameters of each reduced bucket.

        The function gets the indices of the parameters, on a thread of the library, and must not
        block.
        """
        callback = _abi.dist_bucket_fn()
        if function is not None:
            chosen = function

            def call(bucket: Any, _user: int) -> None:
                try:
                    struct = bucket.contents
                    indices = ctypes.cast(struct.params, ctypes.POINTER(ctypes.c_size_t))
                    chosen(list(indices[: struct.n_params]))
                except BaseException:
                    import sys

                    sys.excepthook(*sys.exc_info())

            callback = _abi.dist_bucket_fn(call)
        call_status("on_bucket", None, lib.dist_reducer_on_bucket(self._handle, callback, None))
        self._on_bucket = callback if function is not None else None

    @property
    def layout(self) -> bytes:
        """The layout of the buckets, to be stored in a checkpoint."""
        return self._blob("layout", lib.dist_reducer_layout)

    def describe(self) -> dict[str, Any]:
        """Describes parameters, buckets and options, with sums over all steps."""
        import json

        value: dict[str, Any] = json.loads(self._blob("describe", lib.dist_reducer_describe))
        return value

    def _blob(self, name: str, function: Any) -> bytes:
        out = ctypes.c_void_p()
        call_status(name, None, function(self._handle, ctypes.byref(out)))
        return blob_bytes(out.value)

    @property
    def stats(self) -> dict[str, int]:
        """Figures of the last step, and counters since the creation."""
        return stats_of(self._handle, _abi.dist_reducer_stats_t, lib.dist_reducer_stats)

    def release(self) -> None:
        """Releases the reducer and the memory that it provides."""
        handle, self._handle = self._handle, 0
        if handle:
            blocking("release", None, lib.dist_reducer_release, handle)

    def __enter__(self) -> Reducer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def __del__(self, release: Any = lib.dist_reducer_release) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            release(handle)


def array_at(address: int | None, shape: tuple[int, ...], dtype: int, owner: Any) -> Any:
    """Returns a numpy array over memory of the library, which keeps the owner alive."""
    import numpy

    element = _dtypes.numpy_dtype(dtype)
    size = math.prod(shape) * element.itemsize
    if not size or address is None:
        return numpy.empty(shape, element)
    memory = (ctypes.c_char * size).from_address(address)
    memory.owner = owner
    return numpy.frombuffer(memory, numpy.uint8).view(element).reshape(shape)


def stats_of(handle: int, kind: Any, function: Any) -> dict[str, int]:
    """Returns the fields of a struct of figures."""
    struct = kind(struct_size=ctypes.sizeof(kind))
    call_status("stats", None, function(handle, ctypes.byref(struct)))
    names = [name for name, _ in kind._fields_ if name != "struct_size"]
    return {name: getattr(struct, name) for name in names}

