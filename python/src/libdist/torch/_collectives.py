"""torch's operations as calls of the library."""

from __future__ import annotations

import ctypes

import torch

from .. import _abi
from .._library import blob_list, lib
from ._tensors import (
    addresses_of,
    apart,
    bytes_of,
    check_same_kind,
    counts_of,
    finisher,
    is_plain,
    moved,
    only,
    readable,
    reduced,
    sparse_sum,
    split_rows,
    writable,
)
from ._types import DTYPES, OPERATORS


class Collectives:
    """The operations. The class that inherits them has `group`, `issue` and `settings`."""

    # Reductions.

    def allreduce(self, tensors, opts):
        """Reduces a tensor of all ranks in place."""
        tensor = only(tensors, "all_reduce")
        if tensor.layout != torch.strided:
            return self.allreduce_sparse(tensors, opts)
        moves = []
        buffer = self._in_place(tensor, moves)
        dtype, count = reduced(tensor)
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
            finisher(moves),
            factor,
        )

    def allreduce_coalesced(self, tensors, opts):
        """Reduces several tensors of all ranks in place."""
        return self._together(
            "all_reduce",
            opts,
            tensors,
            tensors,
            [lambda o, t=t: Collectives.allreduce(self, [t], o) for t in tensors],
        )

    def allreduce_sparse(self, tensors, opts):
        """Adds a sparse tensor of all ranks."""
        tensor = only(tensors, "all_reduce")
        operator, _factor = self._operator(opts)
        if tensor.layout != torch.sparse_coo or operator != _abi.DIST_SUM:
            raise ValueError("libdist reduces sparse tensors only in COO layout, and only by SUM")
        own = tensor.coalesce()
        payload = torch.cat((bytes_of(own.indices()), bytes_of(own.values())))
        out = ctypes.c_void_p()

        def finish(_work):
            strings = blob_list(out)
            tensor.copy_(sparse_sum(strings, own))

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
        tensor = only(tensors, "reduce")
        root = opts.rootRank
        moves = []
        at_root = self.group.rank == root
        buffer = self._in_place(tensor, moves) if at_root else readable(tensor)
        dtype, count = reduced(tensor)
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
            finisher(moves),
            factor,
        )

    def reduce_scatter(self, outputs, inputs, opts):
        """Reduces one tensor for each rank, and gives each rank its result."""
        output = only(outputs, "reduce_scatter")
        parts = self._list(only(inputs, "reduce_scatter"), "reduce_scatter")
        check_same_kind([output, *parts], "reduce_scatter")
        moves = []
        target = writable(output, moves)
        own = parts[self.group.rank]
        if own.numel() != target.numel():
            raise ValueError("reduce_scatter: the output has another size than the rank's input")
        sources = [apart(readable(p), [target], own.data_ptr()) for p in parts]
        dtype, _count = reduced(output)
        operator, factor = self._operator(opts)
        pointers, counts = addresses_of(sources), counts_of(sources, dtype)
        return self.issue(
            "reduce_scatter",
            lib.dist_reduce_scatter_v,
            (pointers, counts, target.data_ptr(), dtype, operator),
            opts,
            parts,
            outputs,
            (sources, target),
            finisher(moves),
            factor,
        )

    def reduce_scatter_single(self, output, source, opts):
        """Reduces a tensor with one block for each rank, and gives each rank its block."""
        size = self.group.size
        if output.numel() * size != source.numel():
            raise ValueError("input tensor must be the same size as output size times world size")
        check_same_kind([output, source], "input tensor must be the same type as the output tensor")
        moves = []
        target = writable(output, moves)
        dtype, count = reduced(output)
        block = source.data_ptr() + self.group.rank * count * output.element_size()
        data = readable(source)
        if target.data_ptr() != block:
            data = apart(data, [target])
        operator, factor = self._operator(opts)
        return self.issue(
            "_reduce_scatter_base",
            lib.dist_reduce_scatter,
            (data.data_ptr(), target.data_ptr(), count, dtype, operator),
            opts,
            (source,),
            (output,),
            (data, target),
            finisher(moves),
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
        tensor = only(tensors, "broadcast")
        moves = []
        buffer = self._in_place(tensor, moves)
        dtype, count = moved(tensor)
        return self.issue(
            "broadcast",
            lib.dist_broadcast,
            (buffer.data_ptr(), count, dtype, opts.rootRank),
            opts,
            tensors,
            tensors,
            (buffer,),
            finisher(moves),
        )

    def allgather(self, outputs, inputs, opts):
        """Gives every rank the tensors of all ranks, in a list."""
        source = only(inputs, "all_gather")
        targets = self._list(only(outputs, "all_gather"), "all_gather")
        check_same_kind([source, *targets], "all_gather")
        moves = []
        places = [writable(t, moves) for t in targets]
        rank = self.group.rank
        if places[rank].numel() != source.numel():
            raise ValueError("all_gather: invalid tensor size of the rank's own output")
        data = apart(readable(source), places, places[rank].data_ptr())
        dtype, _count = moved(source)
        pointers, counts = addresses_of(places), counts_of(places, dtype)
        return self.issue(
            "all_gather",
            lib.dist_all_gather_v,
            (data.data_ptr(), pointers, counts, dtype),
            opts,
            inputs,
            targets,
            (data, places),
            finisher(moves),
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
        target = writable(output, moves)
        dtype, count = moved(source)
        block = target.data_ptr() + self.group.rank * source.numel() * source.element_size()
        data = apart(readable(source), [target], block)
        return self.issue(
            "_all_gather_base",
            lib.dist_all_gather,
            (data.data_ptr(), target.data_ptr(), count, dtype),
            opts,
            (source,),
            (output,),
            (data, target),
            finisher(moves),
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
        source = only(inputs, "gather")
        root = opts.rootRank
        moves = []
        places, pointers, counts = [], None, None
        dtype, count = moved(source)
        if self.group.rank == root:
            targets = self._list(only(outputs, "gather"), "gather")
            check_same_kind([source, *targets], "gather")
            places = [writable(t, moves) for t in targets]
            pointers, counts = addresses_of(places), counts_of(places, dtype)
        elif outputs:
            raise ValueError("gather: outputs must be empty on ranks that are not the root")
        else:
            targets = []
        allowed = places[root].data_ptr() if places else None
        data = apart(readable(source), places, allowed)
        return self.issue(
            "gather",
            lib.dist_gather_v,
            (data.data_ptr(), count, pointers, counts, dtype, root),
            opts,
            inputs,
            targets,
            (data, places),
            finisher(moves),
        )

    def scatter(self, outputs, inputs, opts):
        """Gives each rank its tensor of the root's list."""
        output = only(outputs, "scatter")
        root = opts.rootRank
        moves = []
        target = writable(output, moves)
        dtype, count = moved(output)
        sources, pointers, counts = [], None, None
        if self.group.rank == root:
            parts = self._list(only(inputs, "scatter"), "scatter")
            check_same_kind([output, *parts], "scatter")
            own = parts[root].data_ptr()
            sources = [apart(readable(p), [target], own) for p in parts]
            pointers, counts = addresses_of(sources), counts_of(sources, dtype)
        elif inputs:
            raise ValueError("scatter: inputs must be empty on ranks that are not the root")
        return self.issue(
            "scatter",
            lib.dist_scatter_v,
            (pointers, counts, target.data_ptr(), count, dtype, root),
            opts,
            inputs[0] if inputs else outputs,
            outputs,
            (target, sources),
            finisher(moves),
        )

    def alltoall(self, outputs, inputs, opts):
        """Exchanges the tensors of lists between all pairs of ranks."""
        targets = self._list(outputs, "all_to_all")
        parts = self._list(inputs, "all_to_all")
        check_same_kind([*targets, *parts], "all_to_all")
        moves = []
        places = [writable(t, moves) for t in targets]
        sources = [apart(readable(p), places) for p in parts]
        dtype, _count = moved(parts[0])
        arrays = (
            addresses_of(sources),
            counts_of(sources, dtype),
            addresses_of(places),
            counts_of(places, dtype),
        )
        return self.issue(
            "all_to_all",
            lib.dist_all_to_all_v,
            (*arrays, dtype),
            opts,
            inputs,
            outputs,
            (places, sources),
            finisher(moves),
        )

    def all_to_all_single(self, output, source, output_splits, input_splits, opts):
        """Exchanges parts of one tensor between all pairs of ranks."""
        check_same_kind([output, source], "all_to_all_single")
        moves = []
        target = writable(output, moves)
        data = apart(readable(source), [target])
        size = self.group.size
        dtype, _count = moved(source)
        width = 1 if source.dtype in DTYPES else source.element_size()
        if not output_splits and not input_splits:
            if source.numel() % size or source.numel() != output.numel():
                raise ValueError("Tensor's dim 0 does not divide equally across group size")
            function = lib.dist_all_to_all
            arguments = (data.data_ptr(), target.data_ptr(), source.numel() // size * width, dtype)
        else:
            function = lib.dist_all_to_all_v
            arguments = (
                *split_rows(data, input_splits, size, width),
                *split_rows(target, output_splits, size, width),
                dtype,
            )
        return self.issue(
            "all_to_all",
            function,
            arguments,
            opts,
            (source,),
            (output,),
            (data, target),
            finisher(moves),
        )

    def barrier(self, opts):
        """Completes when all ranks have called it."""
        return self.issue("barrier", lib.dist_barrier, (), opts, (), (), ())

    # Messages.

    def send(self, tensors, dst, tag):
        """Sends a tensor to a rank."""
        tensor = only(tensors, "send")
        data = readable(tensor)
        dtype, count = moved(tensor)
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
        tensor = only(tensors, "recv")
        moves = []
        buffer = writable(tensor, moves)
        dtype, count = moved(tensor)
        return self.issue(
            title,
            lib.dist_recv,
            (buffer.data_ptr(), count, dtype, src, tag, None),
            None,
            tensors,
            tensors,
            (buffer,),
            finisher(moves),
            counted=False,
        )

    # Parts.

    def _in_place(self, tensor, moves):
        """Returns a tensor that the library reads and writes in place of the given one."""
        if is_plain(tensor):
            return tensor
        buffer = readable(tensor)
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
