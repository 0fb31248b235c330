"""Makes, splits, aborts and reconfigures groups, and waits for works, on three ranks.

python torch_groups.py [--only WORDS]
"""

import datetime
import os
import signal
import threading
import time
import unittest

import torch
import torch.distributed as dist
import torch_ranks
from torch_cases import CPU, RANKS, add_cases, expect, raises, rank, run_suite

import libdist.torch
from libdist.errors import Error, Mismatch, Timeout


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
    if rank() < 2:
        (dist.send if rank() else dist.recv)(torch.zeros(1), 1 - rank())
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
        # The hook of torch's flight recorder runs first. It needs a second or more.
        assert called.wait(60)


def case_interrupt():
    """Ctrl-C ends a wait within 100 ms, if the group was asked for it."""
    group = dist.new_group(pg_options={"interruptible": True})
    if rank() == 0:
        sent = []
        # A program that a shell has started in the background ignores the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)

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


def debug_detail():
    """Runs operations under torch's wrapper for the level DETAIL."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    dist.init_process_group("libdist")
    for _ in range(3):
        x = torch.ones(4)
        dist.all_reduce(x)
        expect(x, [3.0] * 4)
    parts = [torch.zeros(2) for _ in range(RANKS)]
    dist.all_gather(parts, torch.full((2,), float(rank())))
    expect(parts[2], [2.0, 2.0])
    gathered = [None] * RANKS
    dist.all_gather_object(gathered, rank())
    assert gathered == [0, 1, 2]
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


class Groups(unittest.TestCase):
    """One test for each case."""

    def test_detail(self):
        torch_ranks.run(debug_detail, RANKS)

    def test_begun_again(self):
        torch_ranks.run(begun_again, RANKS)

    def test_as_gloo(self):
        torch_ranks.run(as_gloo, RANKS)


if __name__ == "__main__":
    add_cases(Groups, globals(), ("groups",))
    run_suite(Groups)
