"""Calls every operation of torch's groups, also with unusual tensors, on three ranks.

python torch_calls.py [--only WORDS]
"""

import threading
import time
import unittest
import unittest.mock

import torch
import torch.distributed as dist
from torch_cases import CPU, RANKS, add_cases, expect, raises, ramp, rank, run_suite

from libdist.errors import Error
from libdist.torch._threads import Threads


def case_operators():
    """All operators reduce as they say."""
    ops = dist.ReduceOp
    wanted = {ops.SUM: 6, ops.PRODUCT: 6, ops.MIN: 1, ops.MAX: 3, ops.AVG: 2}
    for op, value in wanted.items():
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int16, torch.uint8):
            x = torch.full((5,), rank() + 1, dtype=dtype)
            dist.all_reduce(x, op)
            expect(x, [value] * 5)
    for op, value in {ops.BAND: 0, ops.BOR: 3, ops.BXOR: 0}.items():
        x = torch.full((2,), rank() + 1)
        dist.all_reduce(x, op)
        expect(x, [value] * 2)
    x = torch.ones(4)
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    expect(x, [1.5] * 4)
    flags = torch.tensor([rank() == 1, False])
    dist.all_reduce(flags)
    expect(flags, [True, False])


def case_strides():
    """Tensors without contiguous memory have the right results."""
    whole = torch.zeros(4, 6, dtype=torch.float64)
    view = whole[:, ::2]
    view.fill_(rank() + 1)
    dist.all_reduce(view)
    expect(whole[:, ::2], torch.full((4, 3), 6.0))
    expect(whole[:, 1::2], torch.zeros(4, 3))
    turned = torch.zeros(3, 2).t()
    turned.fill_(rank())
    work = dist.broadcast(turned, 2, async_op=True)
    work.wait()
    expect(turned, torch.full((2, 3), 2.0))
    parts = [torch.zeros(6, 2).t()[:, ::2] for _ in range(RANKS)]
    dist.all_gather(parts, torch.full((2, 3), float(rank())))
    for index, part in enumerate(parts):
        expect(part, torch.full((2, 3), float(index)))
    source = torch.arange(6.0).reshape(2, 3).t()
    if rank() == 0:
        dist.send(source, 1)
    elif rank() == 1:
        target = torch.zeros(2, 3).t()
        dist.recv(target, 0)
        expect(target, source)
    conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()
    # torch's dispatcher would pass a copy.
    backend = dist.group.WORLD._get_backend(CPU)
    backend.allreduce([conjugate], dist.AllreduceOptions()).wait()
    expect(conjugate, torch.tensor([3 - 6j, 9 + 3j]))


def case_parameters():
    """Parameters, which record their gradients, are written in place."""
    for options in (None, {"interruptible": False}):
        group = dist.new_group(pg_options=options)
        for make in (lambda: torch.ones(2, 3), lambda: torch.ones(3, 2).t()):
            parameter = torch.nn.Parameter(make())
            work = dist.broadcast(parameter, 1, group, async_op=True)
            work.wait()
            dist.all_reduce(parameter, group=group)
            expect(parameter, torch.full((2, 3), 3.0))


def case_types_that_only_move():
    """Types that the library does not know are moved as bytes, and not reduced."""
    x = torch.zeros(4, dtype=torch.complex32)
    if rank() == 1:
        x.fill_(2)
    dist.broadcast(x, 1)
    assert x.real.float().tolist() == [2.0] * 4
    group = dist.group.WORLD
    raises(TypeError, group.allreduce, [torch.zeros(4, dtype=torch.float8_e4m3fnuz)])


def case_places():
    """Outputs that share memory with inputs are right."""
    buffer = torch.zeros(RANKS * 4)
    own = buffer[rank() * 4 :][:4]
    own.fill_(rank())
    dist.all_gather_into_tensor(buffer, own)
    expect(buffer.reshape(RANKS, 4)[:, 0], [0, 1, 2])
    whole = torch.arange(RANKS * 2.0)
    dist.reduce_scatter_tensor(whole[rank() * 2 :][:2], whole)
    expect(whole[rank() * 2 :][:2], torch.arange(RANKS * 2.0)[rank() * 2 :][:2] * RANKS)
    odd = torch.arange(RANKS * 2.0)
    dist.reduce_scatter_tensor(odd[1:3], odd.clone())
    expect(odd[1:3], torch.arange(RANKS * 2.0)[rank() * 2 :][:2] * RANKS)
    block = torch.arange(float(RANKS)) + 10 * rank()
    dist.all_to_all_single(block, block)
    expect(block, [rank(), 10 + rank(), 20 + rank()])


def case_lists():
    """Lists may have tensors of different lengths."""
    outputs = [torch.zeros(i + 1) for i in range(RANKS)]
    dist.all_gather(outputs, torch.full((rank() + 1,), float(rank())))
    expect(outputs[2], [2.0] * 3)
    inputs = [torch.full((i + 1,), 1.0) for i in range(RANKS)]
    result = torch.zeros(rank() + 1)
    dist.reduce_scatter(result, inputs)
    expect(result, [3.0] * (rank() + 1))
    gathered = [torch.zeros(2) for _ in range(RANKS)] if rank() == 1 else None
    dist.gather(torch.full((2,), float(rank())), gathered, 1)
    if rank() == 1:
        expect(torch.stack(gathered)[:, 0], [0, 1, 2])
    scattered = torch.zeros(2)
    dist.scatter(
        scattered, [torch.full((2,), float(i)) for i in range(RANKS)] if rank() == 2 else None, 2
    )
    expect(scattered, [rank()] * 2)
    outs = [torch.zeros(rank() + 1) for _ in range(RANKS)]
    dist.all_to_all(outs, [torch.full((i + 1,), float(rank())) for i in range(RANKS)])
    for index, out in enumerate(outs):
        expect(out, [index] * (rank() + 1))
    sizes = [1, 2, 3]
    out = torch.zeros(RANKS * sizes[rank()])
    dist.all_to_all_single(out, torch.full((6,), float(rank())), [sizes[rank()]] * RANKS, sizes)
    expect(out[:: sizes[rank()]], [0, 1, 2])
    root = torch.full((3,), float(rank()))
    dist.reduce(root, 1)
    expect(root, [3.0] * 3 if rank() == 1 else [rank()] * 3)


def case_wrong_arguments():
    """Wrong arguments raise at once, and the group stays usable."""
    group = dist.group.WORLD
    raises(ValueError, group.allreduce, [torch.zeros(1), torch.zeros(1)])
    raises(ValueError, dist.all_gather_into_tensor, torch.zeros(5), torch.zeros(2))
    raises(ValueError, group.allgather, [[torch.zeros(2)]], [torch.zeros(2)])
    raises(ValueError, dist.all_to_all_single, torch.zeros(4), torch.zeros(4))
    raises(Error, dist.all_reduce, torch.zeros(2), dist.ReduceOp.BAND)
    x = torch.ones(1)
    dist.all_reduce(x)
    expect(x, [3.0])


def case_coalescing():
    """Several operations together have the same results as alone."""
    tensors = [ramp(n) for n in (1, 5, 1000)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        expect(tensor, torch.arange(len(tensor)) * 3.0 + 3)
    outs = [torch.zeros(RANKS * n) for n in (2, 3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((len(out) // RANKS,), float(rank())))
    manager.wait()
    expect(outs[0], [0, 0, 1, 1, 2, 2])
    parts = [torch.zeros(n) for n in (1, 4)]
    with dist._coalescing_manager():
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.ones(len(part) * RANKS))
    expect(parts[1], [3.0] * 4)
    with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
        first = torch.full((2,), float(rank()))
        dist.broadcast(first, 1, async_op=True)
        received = torch.zeros(2)
        dist.isend(ramp(2).float(), (rank() + 1) % RANKS)
        dist.irecv(received, (rank() - 1) % RANKS)
    manager.wait()
    expect(first, [1.0, 1.0])
    expect(received, torch.arange(2.0) + (rank() - 1) % RANKS)


def case_coalescing_after_an_error():
    """An error inside a coalescing block leaves no open batch."""

    def failing():
        with dist._coalescing_manager(device=CPU):
            dist.group.WORLD.allgather([[torch.zeros(1)]], [torch.zeros(1)])

    raises(ValueError, failing)
    # torch's own list of the block stays open as well.
    dist.distributed_c10d._world.pg_coalesce_state.clear()
    x = torch.ones(2)
    with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
        dist.broadcast(x, 0, async_op=True)
    manager.wait()
    case_coalescing()


def case_messages():
    """Messages have tags, sources and batches."""
    right, left = (rank() + 1) % RANKS, (rank() - 1) % RANKS
    received = torch.zeros(3)
    operations = [
        dist.P2POp(dist.isend, ramp(3).float(), right),
        dist.P2POp(dist.irecv, received, left),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    expect(received, torch.arange(3.0) + left)
    if rank() == 0:
        sources = set()
        for _ in range(2):
            value = torch.zeros(1)
            sources.add((dist.recv(value, tag=7), int(value)))
        assert sources == {(1, 1), (2, 2)}, sources
        late = torch.zeros(1)
        early = dist.irecv(torch.zeros(1), 1, tag=9)
        dist.recv(late, 1, tag=8)
        expect(late, [8.0])
        early.wait()
        work = dist.group.WORLD.recv_anysource([late], 5)
        work.wait()
        assert work._source_rank() == 2
    else:
        dist.send(torch.full((1,), float(rank())), 0, tag=7)
        if rank() == 1:
            dist.send(torch.full((1,), 8.0), 0, tag=8)
            dist.send(torch.full((1,), 9.0), 0, tag=9)
        else:
            dist.send(torch.zeros(1), 0, tag=5)


def case_sparse():
    """Sparse tensors are added."""
    indices = torch.tensor([[rank(), 4]])
    x = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0]), (6,))
    dist.all_reduce(x)
    expect(x.to_dense(), [1.0, 1.0, 1.0, 0.0, 6.0, 0.0])
    empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.long), torch.zeros(0), (6,))
    dist.all_reduce(empty)
    expect(empty.to_dense(), [0.0] * 6)


def case_objects():
    """torch's object collectives work."""
    gathered = [None] * RANKS
    dist.all_gather_object(gathered, {"rank": rank(), "text": "x" * rank()})
    assert [g["rank"] for g in gathered] == [0, 1, 2]
    objects = ["a", {"b": 2}] if rank() == 1 else [None, None]
    dist.broadcast_object_list(objects, 1)
    assert objects == ["a", {"b": 2}]
    own = [None]
    dist.scatter_object_list(own, [10, 11, 12] if rank() == 0 else None, 0)
    assert own == [10 + rank()]
    collected = [None] * RANKS if rank() == 2 else None
    dist.gather_object(rank(), collected, 2)
    assert rank() != 2 or collected == [0, 1, 2]


class Calls(unittest.TestCase):
    """One test for each case."""

    def test_threads_end_while_one_starts(self):
        """The threads of futures can be closed while another thread starts one of them."""
        start = threading.Thread.start

        def start_late(thread):
            time.sleep(0.2)
            start(thread)

        pool, done = Threads(), []
        submitter = threading.Thread(target=pool.submit, args=(done.append, 1))
        with unittest.mock.patch.object(threading.Thread, "start", start_late):
            start(submitter)
            time.sleep(0.1)
            pool.close(5)
        submitter.join()
        self.assertEqual(done, [1])


if __name__ == "__main__":
    add_cases(Calls, globals(), ("operators", "lists"))
    run_suite(Calls)
