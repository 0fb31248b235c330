"""Calls every operation of torch's groups, also with unusual tensors, on three ranks.

    python torch_calls.py [--only WORDS]

Each function with a name that begins with `case_` runs on all ranks.
"""

import datetime
import os
import signal
import sys
import tempfile
import threading
import time
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch_ranks

import libdist.torch
from libdist.errors import Error, Mismatch, Timeout

RANKS = 3
CPU = torch.device("cpu")


def rank():
    """Returns the rank of this process."""
    return dist.get_rank()


def ramp(count, dtype=torch.float64):
    """Returns a tensor whose values depend on the rank."""
    return torch.arange(count, dtype=dtype) + rank()


def expect(tensor, values):
    """Compares a tensor with values."""
    wanted = values if isinstance(values, torch.Tensor) else torch.tensor(values)
    assert torch.equal(tensor, wanted.to(tensor.dtype)), f"{tensor} is not {wanted}"


def raises(kinds, function, *arguments, **options):
    """Calls a function that must fail, and returns the error."""
    try:
        function(*arguments, **options)
    except kinds as error:
        return error
    raise AssertionError(f"{function} did not fail")


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
        dist.broadcast(x, 0)
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


def case_works():
    """Works and futures tell what they should."""
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    chained = future.then(lambda done: done.value()[0] * 2)
    expect(chained.wait(), [6.0] * 3)
    assert work.is_completed() and work.exception() is None
    assert work.wait() and future.done()
    assert work.result()[0].data_ptr() == x.data_ptr()
    late = [torch.ones(2)]
    if rank() == 0:
        pending = dist.group.WORLD.allreduce(late)
        assert not pending.is_completed()
        begin = time.monotonic()
        error = raises(RuntimeError, pending.wait, datetime.timedelta(milliseconds=50))
        assert "Timed out" in str(error) and 0.04 < time.monotonic() - begin < 1
        dist.send(torch.zeros(1), 1)
        dist.send(torch.zeros(1), 2)
        pending.wait()
    else:
        dist.recv(torch.zeros(1), 0)
        dist.group.WORLD.allreduce(late).wait()
    expect(late[0], [3.0, 3.0])


def case_callback_that_waits():
    """A callback of a future may wait for another operation."""

    def again(done):
        y = done.value()[0]
        return dist.all_reduce(y, async_op=True).get_future().wait()[0]

    futures = [
        dist.all_reduce(torch.ones(2), async_op=True).get_future().then(again) for _ in range(1)
    ]
    for future in futures:
        expect(future.wait(), [9.0, 9.0])


def case_dropped_works():
    """The library may write into tensors that the program has dropped."""
    for _ in range(200):
        dist.all_reduce(torch.ones(5000), async_op=True)
        work = dist.irecv(torch.zeros(100), (rank() - 1) % RANKS)
        dist.isend(torch.ones(100), (rank() + 1) % RANKS)
        del work
    dist.barrier()


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


def case_groups():
    """New groups, subgroups and splits work."""
    pair = dist.new_group([0, 2], group_desc="pair")
    if rank() != 1:
        x = torch.ones(1)
        dist.all_reduce(x, group=pair)
        expect(x, [2.0])
        assert dist.get_group_rank(pair, rank()) == rank() // 2
        dist.destroy_process_group(pair)
    again = dist.new_group([0, 2], timeout=datetime.timedelta(seconds=40))
    if rank() != 1:
        dist.barrier(again)
    alone, _ = dist.new_subgroups(1)
    x = torch.full((1,), 5.0)
    dist.all_reduce(x, group=alone)
    expect(x, [5.0])
    local = dist.new_group([1, 2], use_local_synchronization=True) if rank() else None
    if rank():
        dist.barrier(local)


def case_split_and_merge():
    """Groups can be split without the Python layer, and merged through a store."""
    world = dist.group.WORLD
    members = [0, 1]
    if rank() in members:
        part = world.split_group(members, group_name="half")
        x = torch.ones(1)
        part.allreduce([x]).wait()
        expect(x, [2.0])
        assert part.size() == 2 and part.rank() == rank()
    store = dist.PrefixStore("meeting", dist.distributed_c10d._get_default_store())
    backend = world._get_backend(CPU)
    merged = backend.merge(store, backend.options, (rank() + 1) % RANKS, RANKS)
    assert merged.rank() == (rank() + 1) % RANKS
    x = torch.ones(1)
    merged.allreduce([x], dist.AllreduceOptions()).wait()
    expect(x, [3.0])


def case_reconfigure():
    """The ranks of a back end meet again."""
    backend = dist.group.WORLD._get_backend(CPU)
    mine = backend.get_reconfigure_handle()
    handles = [None] * RANKS
    dist.all_gather_object(handles, mine)
    options = dist.distributed_c10d.ReconfigureOptions()
    options.uuid = 5
    options.handles = handles
    backend.reconfigure(options).wait()
    x = torch.ones(1)
    dist.all_reduce(x)
    expect(x, [3.0])


def case_monitored_barrier():
    """The barrier names the ranks that do not come."""
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=5))
    if rank() == 1:
        time.sleep(0.6)
        return
    limit = datetime.timedelta(milliseconds=200)
    error = raises(RuntimeError, dist.monitored_barrier, timeout=limit, wait_all_ranks=True)
    if rank() == 0:
        assert "Rank 1 failed to pass monitoredBarrier in 200 ms" in str(error), error


def case_sequence_numbers():
    """Each collective has one number, and messages have none."""
    backend = dist.group.WORLD._get_backend(CPU)
    begin = backend._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    dist.all_gather_object([None] * RANKS, 1)
    between = backend._get_sequence_number_for_group()
    assert between > begin
    case_messages()
    dist.barrier()
    numbers = [None] * RANKS
    dist.all_gather_object(numbers, backend._get_sequence_number_for_group())
    assert len(set(numbers)) == 1, numbers


def case_mismatch():
    """Different calls are reported on all ranks, as the library reports them."""
    x = torch.ones(4 if rank() == 1 else 3)
    error = raises(Mismatch, dist.all_reduce, x)
    assert error.operation == "all_reduce"
    assert isinstance(libdist.torch.failure(), Mismatch)
    kinds = dist.distributed_c10d.ErrorType if hasattr(dist.distributed_c10d, "ErrorType") else None
    assert kinds is None or dist.group.WORLD._get_backend(CPU).get_error() != kinds.SUCCESS


def case_timeouts():
    """Time-outs of groups and calls raise Timeout."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=30))
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(milliseconds=300), group)
    if rank() == 0:
        begin = time.monotonic()
        error = raises(Timeout, dist.barrier, group)
        assert 0.2 < time.monotonic() - begin < 3
        assert "Timed out waiting" in str(error)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))


def case_abort_hooks():
    """Hooks run before an abort, and operations end."""
    backend = dist.group.WORLD._get_backend(CPU)
    called = threading.Event()
    backend.register_abort_hook(1, called.set)
    backend.register_abort_hook(2, lambda: called.clear())
    backend.unregister_abort_hook(2)
    dist.barrier()
    if rank() == 0:
        backend.abort()
        assert called.is_set()
    else:
        raises(Error, dist.barrier)
        assert called.wait(5)


def case_interrupt():
    """Ctrl-C ends a wait within 100 ms, if the group was asked for it."""
    group = dist.new_group(pg_options={"interruptible": True})
    if rank() == 0:
        sent = []

        def interrupt():
            time.sleep(0.3)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        raises(KeyboardInterrupt, dist.barrier, group)
        assert time.monotonic() - sent[0] < 0.1
        dist.send(torch.zeros(1), 1)
        dist.send(torch.zeros(1), 2)
    else:
        dist.recv(torch.zeros(1), 0)
        dist.barrier(group)
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    expect(x, [3.0])


def case_blocking_calls():
    """Calls that wait inside the library have the same results and errors."""
    group = dist.new_group(pg_options=libdist.torch.Settings(interruptible=False))
    x = torch.zeros(2, 4)[:, ::2]
    x.fill_(1.0)
    dist.all_reduce(x, group=group)
    expect(x, torch.full((2, 2), 3.0))
    dist.barrier(group)
    parts = [torch.zeros(2) for _ in range(RANKS)]
    dist.all_gather(parts, torch.full((2,), float(rank())), group=group)
    expect(parts[2], [2.0, 2.0])
    raises(Mismatch, dist.all_reduce, torch.ones(3 + rank()), group=group)


def case_memory():
    """The C++ subclass allocates memory that other ranks reach without a copy."""
    backend = dist.group.WORLD._get_backend(CPU)
    if not backend.supports_tensor_alloc(CPU):
        assert os.environ.get("LIBDIST_TORCH_SUBCLASS") != "cxx"
        return
    x = backend.allocate_tensor(1 << 18, dtype=torch.float32, device=CPU)
    assert x.data_ptr() % 64 == 0
    x.fill_(rank() + 1)
    dist.all_reduce(x)
    expect(x, torch.full((1 << 18,), 6.0))


def case_functional():
    """The functional collectives of the compiler work."""
    import torch.distributed._functional_collectives as functional

    x = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    expect(functional.wait_tensor(x), [3.0, 3.0])
    y = functional.all_gather_tensor(torch.full((1,), float(rank())), 0, dist.group.WORLD)
    expect(functional.wait_tensor(y), [0.0, 1.0, 2.0])


def in_rank(name, store_kind, path):
    """Runs a case in one rank."""
    case = globals()[f"case_{name}"]
    timeout = datetime.timedelta(seconds=60)
    if store_kind == "file":
        size, number = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        store = dist.FileStore(path, size)
        dist.init_process_group(
            "libdist", store=store, rank=number, world_size=size, timeout=timeout
        )
    else:
        dist.init_process_group("libdist", timeout=timeout)
    assert dist.get_backend() == "libdist"
    case()
    if name not in ("mismatch", "abort_hooks", "timeouts"):
        dist.barrier()
    dist.destroy_process_group()
    # A second group in the same process must not meet the values of the first one.
    return True


def debug_detail():
    """Runs operations under torch's wrapper for the level DETAIL."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    dist.init_process_group("libdist")
    for _ in range(3):
        x = torch.ones(4)
        dist.all_reduce(x)
        expect(x, [3.0] * 4)
    case_lists()
    case_objects()
    assert libdist.torch.failure() is None
    dist.destroy_process_group()
    return True


def begun_again():
    """Creates and destroys the default group several times over one store."""
    store = dist.TCPStore(
        "127.0.0.1", int(os.environ["MASTER_PORT"]), RANKS, os.environ["RANK"] == "0"
    )
    for round_number in range(3):
        dist.init_process_group(
            "libdist", store=store, rank=int(os.environ["RANK"]), world_size=RANKS
        )
        x = torch.full((1,), float(round_number))
        dist.all_reduce(x)
        expect(x, [3.0 * round_number])
        dist.destroy_process_group()
    return True


def as_gloo():
    """Answers to the name of Gloo."""
    os.environ["LIBDIST_AS_GLOO"] = "1"
    libdist.torch.register()
    dist.init_process_group("gloo")
    assert libdist.torch.failure() is None
    assert dist.get_backend() == "gloo"
    x = torch.ones(1)
    dist.all_reduce(x)
    expect(x, [3.0])
    dist.destroy_process_group()
    return True


class Calls(unittest.TestCase):
    """One test for each case."""

    def test_detail(self):
        torch_ranks.run(debug_detail, RANKS)

    def test_begun_again(self):
        torch_ranks.run(begun_again, RANKS)

    def test_as_gloo(self):
        torch_ranks.run(as_gloo, RANKS)


def add_cases():
    """Adds a test for each case, and for some cases one with a store in a file."""
    for word in [name for name in globals() if name.startswith("case_")]:
        for kind in ("tcp", "file"):
            name = word.removeprefix("case_")
            if kind == "file" and name not in ("operators", "groups", "lists"):
                continue

            def test(self, name=name, kind=kind):
                path = os.path.join(tempfile.mkdtemp(prefix="libdist-store-"), "store")
                torch_ranks.run(in_rank, RANKS, name, kind, path)

            setattr(Calls, f"test_{name}_{kind}", test)


def main():
    words = sys.argv[2] if sys.argv[1:2] == ["--only"] else ""
    add_cases()
    names = [n for n in unittest.TestLoader().getTestCaseNames(Calls) if words in n]
    suite = unittest.TestSuite(Calls(name) for name in names)
    outcome = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(0 if outcome.wasSuccessful() and outcome.testsRun else 1)


if __name__ == "__main__":
    main()
