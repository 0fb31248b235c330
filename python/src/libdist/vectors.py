"""The collectives of a group on vectors of different lengths, and on lists of tensors."""

from __future__ import annotations

import ctypes

from . import _abi, _buffers
from ._call import issue
from ._dtypes import operator_number
from ._library import c_array, lib
from .collectives import SUM, _device, _same_type, new_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence

    from typing_extensions import Unpack

    from ._call import CallOptions
    from .collectives import Op

    Tensors = Sequence[Any] | Mapping[str, Any]


def _addresses(buffers: Sequence[_buffers.Buffer]) -> Any:
    return c_array(ctypes.c_void_p, [it.address if it.count else None for it in buffers])


def _counts(values: Sequence[int]) -> Any:
    return c_array(ctypes.c_size_t, values)


def _one_type(name: str, buffers: Sequence[_buffers.Buffer]) -> int:
    types = {it.dtype for it in buffers}
    if len(types) != 1:
        raise ValueError(f"{name}: the arrays of one call need one element type")
    return types.pop()



def _shape(like: _buffers.Buffer, count: int) -> tuple[int, ...]:
    """Returns a shape of `count` elements, with the dimensions of an array behind its first."""
    rest = like.shape[1:]
    row = 1
    for extent in rest:
        row *= extent
    return (count // row, *rest) if row and count % row == 0 else (count,)


class _Lists:
    """The places of a result that is a list of arrays."""

    def __init__(self, source: Any, like: _buffers.Buffer, counts: Sequence[int],
                 out: Sequence[Any] | None, name: str) -> None:
        if out is None:
            made = [new_result(source, _shape(like, count), like.dtype) for count in counts]
            self.buffers = [it.buffer for it in made]
            self._made = made
            self._out: Any = None
            return
        if len(out) != len(counts):
            raise ValueError(f"{name}: out has {len(out)} arrays, and the group {len(counts)} ranks")
        self.buffers = [_buffers.write(it, "out") for it in out]
        for buffer, count in zip(self.buffers, counts):
            _same_type(name, like, buffer, count)
        self._made = []
        self._out = list(out)

    def take(self) -> list[Any]:
        if self._out is not None:
            return list(self._out)
        return [it.finish() if it.finish is not None else it.value for it in self._made]


class VectorCollectives:
    """The part of `Group` that has the collectives on vectors of different lengths and on lists."""

    _handle: int
    rank: int
    size: int

    def all_gather_counts(self, count: int, **options: Unpack[CallOptions]) -> list[int]:
        """Gives every rank the numbers of all ranks."""
        counts = (ctypes.c_size_t * self.size)()
        return issue(self, "all_gather_counts", lib.dist_all_gather_counts,
                     (self._handle, count, counts), dict(options), keep=counts,
                     finish=lambda: list(counts))

    def all_gather_v(self, x: Any, counts: Sequence[int] | None = None, *,
                     out: Sequence[Any] | None = None, wait: Any = True,
                     **options: Unpack[CallOptions]) -> Any:
        """Gives every rank a list of the arrays of all ranks, which may have different lengths.

        `counts` has the number of elements of each rank. Without it, the ranks first exchange
        their numbers.
        """
        send = _buffers.read(x, "x")
        known = list(counts) if counts is not None else self.all_gather_counts(send.count)
        lists = _Lists(x, send, known, out, "all_gather_v")
        arguments = (self._handle, send.address, _addresses(lists.buffers), _counts(known),
                     send.dtype)
        return issue(self, "all_gather_v", lib.dist_all_gather_v, arguments, options,
                     device=_device(send, *lists.buffers), wait=wait, keep=(send, lists),
                     finish=lists.take)

    def all_gather_v_at(self, x: Any, counts: Sequence[int],
                        displacements: Sequence[int] | None = None, *,
                        out: Any = None, wait: Any = True,
                        **options: Unpack[CallOptions]) -> Any:
        """Gives every rank the arrays of all ranks, in one array.

        The block of rank i has `counts[i]` elements and begins at the element `displacements[i]` of
        `out`; the call does not change the elements between the blocks. Without `displacements`,
        the blocks follow each other, and without `out` they get a new array. In place, `x` is this
        rank's block of `out`.
        """
        name = "all_gather_v_at"
        send = _buffers.read(x, "x")
        places = [0] * self.size if displacements is None else list(displacements)
        if len(counts) != self.size or len(places) != self.size:
            raise ValueError(f"{name}: pass one count and one displacement for each of the "
                             f"{self.size} ranks")
        if send.count != counts[self.rank]:
            raise ValueError(f"{name}: x has {send.count} elements, and counts[{self.rank}] is "
                             f"{counts[self.rank]}")
        if min(places) < 0 or min(counts) < 0:
            raise ValueError(f"{name}: a count or a displacement is negative")
        if displacements is None:
            end = sum(counts)
        elif out is None:
            raise TypeError(f"{name}: a call with displacements needs out=")
        else:
            end = max(place + count for place, count in zip(places, counts))
        if out is None:
            place = new_result(x, (end,))
            recv, value, finish = place.buffer, place.value, place.finish
        else:
            recv, value, finish = _buffers.write(out, "out"), out, None
            if recv.dtype != send.dtype or recv.count < end:
                raise ValueError(f"{name}: out needs {end} elements of the type of x")
        arguments = (self._handle, send.address, recv.address, _counts(counts),
                     None if displacements is None else _counts(places), send.dtype)
        return issue(self, name, lib.dist_all_gather_v_at, arguments, options,
                     device=_device(send, recv), wait=wait, keep=(send, recv), finish=finish,
                     result=value)

    def gather_v(self, x: Any, *, counts: Sequence[int] | None = None, root: int = 0,
                 out: Sequence[Any] | None = None, wait: Any = True,
                 **options: Unpack[CallOptions]) -> Any:
        """Gives the root a list of the arrays of all ranks; other ranks return None.

        The root passes `counts`, or every rank passes none: then the ranks first exchange them.
        """
        send = _buffers.read(x, "x")
        if counts is None:
            counts = self.all_gather_counts(send.count)
        lists, addresses, lengths = None, None, None
        if self.rank == root:
            lists = _Lists(x, send, counts, out, "gather_v")
            addresses, lengths = _addresses(lists.buffers), _counts(counts)
        arguments = (self._handle, send.address, send.count, addresses, lengths, send.dtype, root)
        return issue(self, "gather_v", lib.dist_gather_v, arguments, options,
                     device=_device(send), wait=wait, keep=(send, lists),
                     finish=lists.take if lists is not None else None)

    def scatter_v(self, arrays: Sequence[Any] | None = None, *, root: int = 0, out: Any = None,
                  wait: Any = True, **options: Unpack[CallOptions]) -> Any:
        """Gives each rank its array of the root's list.

        The root passes `arrays`. Every rank passes `out`, of the length of its array; the root may
        omit it, and then gets its own array.
        """
        sends: list[_buffers.Buffer] = []
        addresses = lengths = None
        if self.rank == root:
            if arrays is None or len(arrays) != self.size:
                raise ValueError(f"scatter_v: the root passes one array for each of {self.size} ranks")
            sends = [_buffers.read(it, "arrays") for it in arrays]
            _one_type("scatter_v", sends)
            addresses, lengths = _addresses(sends), _counts([it.count for it in sends])
            if out is None:
                out = arrays[root]
                recv = _buffers.read(out, "arrays")
            else:
                recv = _buffers.write(out, "out")
        elif out is None:
            raise TypeError("scatter_v: every rank except the root passes out=, for its array")
        else:
            recv = _buffers.write(out, "out")
        arguments = (self._handle, addresses, lengths, recv.address, recv.count, recv.dtype, root)
        return issue(self, "scatter_v", lib.dist_scatter_v, arguments, options,
                     device=_device(recv), wait=wait, keep=(sends, recv), result=out)

    def reduce_scatter_v(self, arrays: Sequence[Any], op: Op = SUM, *, out: Any = None,
                         wait: Any = True, **options: Unpack[CallOptions]) -> Any:
        """Reduces one array for each rank; rank i gets the reduction of all ranks' arrays i."""
        sends = [_buffers.read(it, "arrays") for it in arrays]
        dtype = _one_type("reduce_scatter_v", sends)
        own = sends[self.rank]
        value, finish = out, None
        if out is None:
            place = new_result(arrays[self.rank], own.shape)
            recv, value, finish = place.buffer, place.value, place.finish
        else:
            recv = _buffers.write(out, "out")
            _same_type("reduce_scatter_v", own, recv, own.count)
        arguments = (self._handle, _addresses(sends), _counts([it.count for it in sends]),
                     recv.address, dtype, operator_number(op))
        return issue(self, "reduce_scatter_v", lib.dist_reduce_scatter_v, arguments, options,
                     device=_device(*sends, recv), wait=wait, keep=(sends, recv, op),
                     finish=finish, result=value)

    def all_to_all_v(self, arrays: Sequence[Any], *, out: Sequence[Any] | None = None,
                     wait: Any = True, **options: Unpack[CallOptions]) -> Any:
        """Sends array j to rank j, and returns a list of the arrays that the ranks sent here.

        Without `out`, the ranks first exchange the lengths.
        """
        sends = [_buffers.read(it, "arrays") for it in arrays]
        if len(sends) != self.size:
            raise ValueError(f"all_to_all_v: pass one array for each of the {self.size} ranks")
        dtype = _one_type("all_to_all_v", sends)
        if out is None:
            mine = c_array(ctypes.c_int64, [it.count for it in sends])
            theirs = (ctypes.c_int64 * self.size)()
            self.all_to_all(mine, out=theirs, **options)  # type: ignore[attr-defined]
            counts: Sequence[int] = list(theirs)
        else:
            counts = [_buffers.read(it, "out").count for it in out]
        lists = _Lists(arrays[self.rank], sends[self.rank], counts, out, "all_to_all_v")
        arguments = (self._handle, _addresses(sends), _counts([it.count for it in sends]),
                     _addresses(lists.buffers), _counts(counts), dtype)
        return issue(self, "all_to_all_v", lib.dist_all_to_all_v, arguments, options,
                     device=_device(*sends, *lists.buffers), wait=wait, keep=(sends, lists),
                     finish=lists.take)

    def broadcast_list(self, tensors: Tensors, *, root: int = 0, wait: Any = True,
                       **options: Unpack[CallOptions]) -> Any:
        """Copies a list of the root's tensors to all ranks, in place.

        `tensors` is a sequence, or a dict of names and tensors. The tensors may have different
        types. Before any data moves, the ranks compare their lists, and raise `Mismatch` if they
        differ; the group stays usable.
        """
        return self._list_call("broadcast_list", lib.dist_broadcast_list, tensors, (root,), wait,
                               options)

    def all_reduce_list(self, tensors: Tensors, op: Op = SUM, *, wait: Any = True,
                        **options: Unpack[CallOptions]) -> Any:
        """Reduces a list of tensors of all ranks, in place."""
        return self._list_call("all_reduce_list", lib.dist_all_reduce_list, tensors,
                               (operator_number(op),), wait, options)

    def all_gather_list(self, tensors: Tensors, *, wait: Any = True,
                        **options: Unpack[CallOptions]) -> Any:
        """Gives every rank the blocks of all ranks, for each tensor of a list, in place."""
        return self._list_call("all_gather_list", lib.dist_all_gather_list, tensors, (), wait,
                               options)

    def reduce_scatter_list(self, tensors: Tensors, op: Op = SUM, *, wait: Any = True,
                            **options: Unpack[CallOptions]) -> Any:
        """Reduces a list of tensors in place; each rank gets its own block of each tensor."""
        return self._list_call("reduce_scatter_list", lib.dist_reduce_scatter_list, tensors,
                               (operator_number(op),), wait, options)

    def _list_call(self, name: str, function: Any, tensors: Tensors, more: tuple[Any, ...],
                   wait: Any, options: Any) -> Any:
        named = list(tensors.items() if hasattr(tensors, "items")
                     else ((str(i), it) for i, it in enumerate(tensors)))
        structs = (_abi.dist_tensor_t * max(1, len(named)))()
        keep: list[Any] = [structs]
        for struct, (tensor_name, tensor) in zip(structs, named):
            buffer = _buffers.write(tensor, f"tensor {tensor_name!r}")
            shape = c_array(ctypes.c_int64, buffer.shape)
            keep += [buffer, shape]
            struct.struct_size = ctypes.sizeof(_abi.dist_tensor_t)
            struct.name = tensor_name.encode()
            struct.data = buffer.address
            struct.shape = shape
            struct.n_shape = len(buffer.shape)
            struct.dtype = buffer.dtype
            if buffer.device is not None:
                struct.fields = _abi.DIST_FIELD_DEVICE
                struct.device = buffer.device
        arguments = (self._handle, structs, len(named), *more)
        return issue(self, name, function, arguments, options, wait=wait, keep=keep,
                     result=tensors)
