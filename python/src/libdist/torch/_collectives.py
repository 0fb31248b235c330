"""torch's operations as calls of the library."""

from __future__ import annotations

import ctypes
import torch

from .. import _abi
from .._library import blob_list, lib
from ._types import DTYPES, OPERATORS



def _is_plain(tensor) -> bool:
    """Returns whether the memory of a tensor has its elements in order."""
    if not tensor.is_contiguous() or tensor.is_neg():
        return False
    return not (tensor.is_complex() and tensor.is_conj())


def _readable(tensor):
    """Returns a tensor with the same elements in order."""
    if tensor.layout != torch.strided:
        raise ValueError("libdist needs dense tensors, except for all_reduce")
    if _is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _writable(tensor, moves):
    """Returns a tensor that the library can write; `moves` gets what to copy afterwards."""
    if tensor.layout != torch.strided:
        raise ValueError("libdist needs dense tensors, except for all_reduce")
    if _is_plain(tensor):
        return tensor
    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    moves.append((tensor, buffer))
    return buffer


def _finisher(moves):
    if not moves:
        return None

    def finish(_work):
        for tensor, buffer in moves:
            tensor.copy_(buffer)

    return finish


def _moved(tensor):
    """Returns the C type and the number of elements of a tensor whose bytes are only moved."""
    known = DTYPES.get(tensor.dtype)
    if known is not None:
        return known, tensor.numel()
    return _abi.DIST_U8, tensor.numel() * tensor.element_size()


def _reduced(tensor):
    known = DTYPES.get(tensor.dtype)
    if known is None:
        raise TypeError(f"Invalid scalar type: libdist does not reduce {tensor.dtype}")
    return known, tensor.numel()


def _same_kind(tensors, what: str) -> None:
    first = tensors[0]
    for tensor in tensors:
        if tensor.dtype != first.dtype or tensor.device.type != first.device.type:
            raise ValueError(f"{what}: the tensors have different types or devices")


def _pointers(tensors):
    return (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])


def _counts(tensors, dtype):
    if dtype == _abi.DIST_U8:
        return (ctypes.c_size_t * len(tensors))(*[t.numel() * t.element_size() for t in tensors])
    return (ctypes.c_size_t * len(tensors))(*[t.numel() for t in tensors])


def _span(tensor):
    begin = tensor.data_ptr()
    return begin, begin + tensor.numel() * tensor.element_size()


def _apart(tensor, others, allowed=None):
    """Returns the tensor, or a copy if its memory overlaps others in a place that is not allowed."""
    begin, end = _span(tensor)
    if begin == end or begin == allowed:
        return tensor
    for other in others:
        other_begin, other_end = _span(other)
        if begin < other_end and other_begin < end:
            return tensor.clone()
    return tensor


def _one(tensors, what: str):
    if len(tensors) != 1:
        raise ValueError(f"{what} takes one tensor for each rank, not {len(tensors)}")
    return tensors[0]


class Collectives:
    """The operations. The class that inherits them has `group`, `issue` and `settings`."""

    # Reductions.

    def allreduce(self, tensors, opts):
        """Reduces a tensor of all ranks in place."""
        tensor = _one(tensors, "all_reduce")
        if tensor.layout != torch.strided:
            return self.allreduce_sparse(tensors, opts)
        moves = []
        buffer = self._in_place(tensor, moves)
        dtype, count = _reduced(tensor)
        operator, factor = self._operator(opts)
        pointer = buffer.data_ptr()
        return self.issue(
            "all_reduce",
            lib.dist_all_reduce,
            (pointer, pointer, count, dtype, operator),
            opts,
            tensors,
            tensors,
            (buffer,),
            _finisher(moves),
            factor,
        )

    def allreduce_coalesced(self, tensors, opts):
        """Reduces several tensors of all ranks in place."""
        return self._together(
            "all_reduce",
            opts,
            tensors,
            tensors,
            [lambda o, t=t: self.allreduce([t], o) for t in tensors],
        )

    def allreduce_sparse(self, tensors, opts):
        """Adds a sparse tensor of all ranks."""
        tensor = _one(tensors, "all_reduce")
        operator, _factor = self._operator(opts)
        if tensor.layout != torch.sparse_coo or operator != _abi.DIST_SUM:
            raise ValueError("libdist reduces sparse tensors only in COO layout, and only by SUM")
        own = tensor.coalesce()
        payload = torch.cat((_bytes(own.indices()), _bytes(own.values())))
        out = ctypes.c_void_p()

        def finish(_work):
            strings = blob_list(out)
            tensor.copy_(_sparse_sum(strings, own))

        return self.issue(
            "sparse_all_reduce",
            lib.dist_all_gather_bytes,
            (payload.data_ptr(), payload.numel(), ctypes.byref(out)),
            opts,
            tensors,
            tensors,
            (payload, out),
            finish,
        )

    def reduce(self, tensors, opts):
        """Reduces a tensor of all ranks; the root gets the result in place."""
        tensor = _one(tensors, "reduce")
        root = opts.rootRank
        moves = []
        at_root = self.group.rank == root
        buffer = self._in_place(tensor, moves) if at_root else _readable(tensor)
        dtype, count = _reduced(tensor)
        operator, factor = self._operator(opts)
        pointer = buffer.data_ptr()
        return self.issue(
            "reduce",
            lib.dist_reduce,
            (pointer, pointer if at_root else None, count, dtype, operator, root),
            opts,
            tensors,
            tensors,
            (buffer,),
            _finisher(moves),
            factor,
        )

    def reduce_scatter(self, outputs, inputs, opts):
        """Reduces one tensor for each rank, and gives each rank its result."""
        output = _one(outputs, "reduce_scatter")
        parts = self._list(_one(inputs, "reduce_scatter"), "reduce_scatter")
        _same_kind([output, *parts], "reduce_scatter")
        moves = []
        target = _writable(output, moves)
        own = parts[self.group.rank]
        if own.numel() != target.numel():
            raise ValueError("reduce_scatter: the output has another size than the rank's input")
        sources = [_apart(_readable(p), [target], own.data_ptr()) for p in parts]
        dtype, _count = _reduced(output)
        operator, factor = self._operator(opts)
        pointers, counts = _pointers(sources), _counts(sources, dtype)
        return self.issue(
            "reduce_scatter",
            lib.dist_reduce_scatter_v,
            (pointers, counts, target.data_ptr(), dtype, operator),
            opts,
            parts,
            outputs,
            (sources, target, pointers, counts),
            _finisher(moves),
            factor,
        )

    def reduce_scatter_single(self, output, source, opts):
        """Reduces a tensor with one block for each rank, and gives each rank its block."""
        size = self.group.size
        if output.numel() * size != source.numel():
            raise ValueError(
                "input tensor must be the same size as output size times world size"
            )
        _same_kind([output, source], "input tensor must be the same type as the output tensor")
        moves = []
        target = _writable(output, moves)
        dtype, count = _reduced(output)
        block = source.data_ptr() + self.group.rank * count * output.element_size()
        data = _readable(source)
        if target.data_ptr() != block:
            data = _apart(data, [target])
        operator, factor = self._operator(opts)
        return self.issue(
            "_reduce_scatter_base",
            lib.dist_reduce_scatter,
            (data.data_ptr(), target.data_ptr(), count, dtype, operator),
            opts,
            (source,),
            (output,),
            (data, target),
            _finisher(moves),
            factor,
        )

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        """Does reduce_scatter_single for several tensors."""
        calls = [
            lambda o, a=a, b=b: self.reduce_scatter_single(a, b, o)
            for a, b in zip(outputs, inputs, strict=True)
        ]
        return self._together("reduce_scatter_tensor_coalesced", opts, inputs, outputs, calls)

    # Movements.

    def broadcast(self, tensors, opts):
        """Copies the root's tensor to all ranks."""
        tensor = _one(tensors, "broadcast")
        moves = []
        buffer = self._in_place(tensor, moves)
        dtype, count = _moved(tensor)
        return self.issue(
            "broadcast",
            lib.dist_broadcast,
            (buffer.data_ptr(), count, dtype, opts.rootRank),
            opts,
            tensors,
            tensors,
            (buffer,),
            _finisher(moves),
        )

    def allgather(self, outputs, inputs, opts):
        """Gives every rank the tensors of all ranks, in a list."""
        source = _one(inputs, "all_gather")
        targets = self._list(_one(outputs, "all_gather"), "all_gather")
        _same_kind([source, *targets], "all_gather")
        moves = []
        places = [_writable(t, moves) for t in targets]
        rank = self.group.rank
        if places[rank].numel() != source.numel():
            raise ValueError("all_gather: invalid tensor size of the rank's own output")
        data = _apart(_readable(source), places, places[rank].data_ptr())
        dtype, _count = _moved(source)
        pointers, counts = _pointers(places), _counts(places, dtype)
        return self.issue(
            "all_gather",
            lib.dist_all_gather_v,
            (data.data_ptr(), pointers, counts, dtype),
            opts,
            inputs,
            targets,
            (data, places, pointers, counts),
            _finisher(moves),
        )

    def all_gather_single(self, output, source, opts):
        """Gives every rank the tensors of all ranks, in one tensor."""
        if output.numel() != source.numel() * self.group.size:
            raise ValueError(
                "output tensor size must be equal to world_size times input tensor size"
            )
        if output.dtype != source.dtype:
            raise ValueError("output tensor must have the same type as input tensor")
        moves = []
        target = _writable(output, moves)
        dtype, count = _moved(source)
        block = target.data_ptr() + self.group.rank * source.numel() * source.element_size()
        data = _apart(_readable(source), [target], block)
        return self.issue(
            "_all_gather_base",
            lib.dist_all_gather,
            (data.data_ptr(), target.data_ptr(), count, dtype),
            opts,
            (source,),
            (output,),
            (data, target),
            _finisher(moves),
        )

    def allgather_coalesced(self, output_lists, inputs, opts):
        """Does allgather for several tensors; the lists of outputs are those of the ranks."""
        for outputs in output_lists:
            if len(outputs) != len(inputs):
                raise ValueError("invalid output size: it must be equal to the input size")
        calls = [
            lambda o, i=i: self.allgather([[part[i] for part in output_lists]], [inputs[i]], o)
            for i in range(len(inputs))
        ]
        return self._together(
            "all_gather", opts, inputs, [t for o in output_lists for t in o], calls
        )

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        """Does all_gather_single for several tensors."""
        calls = [
            lambda o, a=a, b=b: self.all_gather_single(a, b, o)
            for a, b in zip(outputs, inputs, strict=True)
        ]
        return self._together("all_gather_into_tensor_coalesced", opts, inputs, outputs, calls)

    def gather(self, outputs, inputs, opts):
        """Gives the root the tensors of all ranks."""
        source = _one(inputs, "gather")
        root = opts.rootRank
        moves = []
        places, pointers, counts = [], None, None
        dtype, count = _moved(source)
        if self.group.rank == root:
            targets = self._list(_one(outputs, "gather"), "gather")
            _same_kind([source, *targets], "gather")
            places = [_writable(t, moves) for t in targets]
            pointers, counts = _pointers(places), _counts(places, dtype)
        elif outputs:
            raise ValueError("gather: outputs must be empty on ranks that are not the root")
        else:
            targets = []
        allowed = places[root].data_ptr() if places else None
        data = _apart(_readable(source), places, allowed)
        return self.issue(
            "gather",
            lib.dist_gather_v,
            (data.data_ptr(), count, pointers, counts, dtype, root),
            opts,
            inputs,
            targets,
            (data, places, pointers, counts),
            _finisher(moves),
        )

    def scatter(self, outputs, inputs, opts):
        """Gives each rank its tensor of the root's list."""
        output = _one(outputs, "scatter")
        root = opts.rootRank
        moves = []
        target = _writable(output, moves)
        dtype, count = _moved(output)
        sources, pointers, counts = [], None, None
        if self.group.rank == root:
            parts = self._list(_one(inputs, "scatter"), "scatter")
            _same_kind([output, *parts], "scatter")
            own = parts[root].data_ptr()
            sources = [_apart(_readable(p), [target], own) for p in parts]
            pointers, counts = _pointers(sources), _counts(sources, dtype)
        elif inputs:
            raise ValueError("scatter: inputs must be empty on ranks that are not the root")
        return self.issue(
            "scatter",
            lib.dist_scatter_v,
            (pointers, counts, target.data_ptr(), count, dtype, root),
            opts,
            inputs[0] if inputs else outputs,
            outputs,
            (target, sources, pointers, counts),
            _finisher(moves),
        )

    def alltoall(self, outputs, inputs, opts):
        """Exchanges the tensors of lists between all pairs of ranks."""
        targets = self._list(outputs, "all_to_all")
        parts = self._list(inputs, "all_to_all")
        _same_kind([*targets, *parts], "all_to_all")
        moves = []
        places = [_writable(t, moves) for t in targets]
        sources = [_apart(_readable(p), places) for p in parts]
        dtype, _count = _moved(parts[0])
        arrays = (
            _pointers(sources),
            _counts(sources, dtype),
            _pointers(places),
            _counts(places, dtype),
        )
        return self.issue(
            "all_to_all",
            lib.dist_all_to_all_v,
            (*arrays, dtype),
            opts,
            inputs,
            outputs,
            (places, sources, arrays),
            _finisher(moves),
        )

    def all_to_all_single(self, output, source, output_splits, input_splits, opts):
        """Exchanges parts of one tensor between all pairs of ranks."""
        _same_kind([output, source], "all_to_all_single")
        moves = []
        target = _writable(output, moves)
        data = _apart(_readable(source), [target])
        size = self.group.size
        dtype, _count = _moved(source)
        width = 1 if source.dtype in DTYPES else source.element_size()
        if not output_splits and not input_splits:
            if source.numel() % size or source.numel() != output.numel():
                raise ValueError("Tensor's dim 0 does not divide equally across group size")
            function = lib.dist_all_to_all
            arguments = (data.data_ptr(), target.data_ptr(), source.numel() // size * width, dtype)
        else:
            function = lib.dist_all_to_all_v
            arguments = (
                *_split(data, input_splits, size, width),
                *_split(target, output_splits, size, width),
                dtype,
            )
        return self.issue(
            "all_to_all",
            function,
            arguments,
            opts,
            (source,),
            (output,),
            (data, target, arguments),
            _finisher(moves),
        )

    def barrier(self, opts):
        """Completes when all ranks have called it."""
        return self.issue("barrier", lib.dist_barrier, (), opts, (), (), ())

    # Messages.

    def send(self, tensors, dst, tag):
        """Sends a tensor to a rank."""
        tensor = _one(tensors, "send")
        data = _readable(tensor)
        dtype, count = _moved(tensor)
        return self.issue(
            "send",
            lib.dist_send,
            (data.data_ptr(), count, dtype, dst, tag),
            None,
            tensors,
            tensors,
            (data,),
            counted=False,
        )

    def recv(self, tensors, src, tag):
        """Receives a tensor from a rank."""
        return self._receive("recv", tensors, src, tag)

    def recv_anysource(self, tensors, tag):
        """Receives a tensor from any rank; the work has the rank."""
        return self._receive("recvAnySource", tensors, _abi.DIST_ANY_SOURCE, tag)

    def _receive(self, title, tensors, src, tag):
        tensor = _one(tensors, "recv")
        moves = []
        buffer = _writable(tensor, moves)
        dtype, count = _moved(tensor)
        return self.issue(
            title,
            lib.dist_recv,
            (buffer.data_ptr(), count, dtype, src, tag, None),
            None,
            tensors,
            tensors,
            (buffer,),
            _finisher(moves),
            counted=False,
        )

    # Parts.

    def _in_place(self, tensor, moves):
        """Returns a tensor that the library reads and writes in place of the given one."""
        if _is_plain(tensor):
            return tensor
        buffer = _readable(tensor)
        moves.append((tensor, buffer))
        return buffer

    def _list(self, tensors, what: str):
        if len(tensors) != self.group.size:
            raise ValueError(
                f"{what}: the list has {len(tensors)} tensors for {self.group.size} ranks"
            )
        return tensors

    def _operator(self, opts):
        """Returns the operator of a call, and the factor of a PREMUL_SUM."""
        operator = opts.reduceOp
        kind = getattr(operator, "op", operator)
        number = OPERATORS[kind]
        if number != _abi.DIST_PREMUL_SUM:
            return number, None
        return number, float(operator.__getstate__()[1])


def _split(tensor, sizes, ranks, width):
    """Returns the addresses and the lengths of the parts of a tensor along its first dimension."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if rows % ranks:
            raise ValueError("Tensor's dim 0 does not divide equally across group size")
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise ValueError("Split sizes don't match total dim 0 size")
    row = tensor.numel() // rows if rows else 0
    pointers = (ctypes.c_void_p * ranks)()
    counts = (ctypes.c_size_t * ranks)()
    address = tensor.data_ptr()
    for index, length in enumerate(sizes):
        pointers[index] = address
        counts[index] = length * row * width
        address += length * row * tensor.element_size()
    return pointers, counts


def _bytes(tensor):
    return tensor.contiguous().view(torch.uint8).reshape(-1).cpu()


def _sparse_sum(strings, own):
    """Adds the sparse tensors whose indices and values are in byte strings."""
    sparse_dims = own.sparse_dim()
    dense_shape = own.values().shape[1:]
    element = own.values().element_size()
    for length in dense_shape:
        element *= length
    entry = 8 * sparse_dims + element
    indices, values = [], []
    for text in strings:
        count = len(text) // entry
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else _EMPTY
        cut = 8 * sparse_dims * count
        indices.append(data[:cut].view(torch.int64).reshape(sparse_dims, count))
        values.append(data[cut:].clone().view(own.dtype).reshape(count, *dense_shape))
    total = torch.sparse_coo_tensor(
        torch.cat(indices, 1), torch.cat(values), own.shape, dtype=own.dtype
    )
    return total.coalesce().to(own.device)


_EMPTY = torch.empty(0, dtype=torch.uint8)
