"""Failures: a killed rank, different calls, a time-out, an abort, and a smaller group."""

import os
import pickle
import signal
import sys
import time

import numpy

import libdist as dist

case = sys.argv[1]
world = dist.init()
rank, size = world.rank, world.size

if case == "kill":
    pids = [int(it) for it in world.all_gather_bytes(b"%d" % os.getpid())]
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        while True:
            world.all_reduce(numpy.ones(3))
            begin = time.monotonic()
    except dist.PeerFailed as error:
        elapsed = time.monotonic() - begin
        assert (error.rank, error.pid, error.kind) == (1, pids[1], "died"), vars(error)
        assert error.host == os.uname().nodename and error.operation == "all_reduce"
        assert error.group == "world" and error.status == -101
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.rank, copy.pid, str(copy)) == (1, pids[1], str(error))
        print(f"detected after {elapsed * 1000:.1f} ms", flush=True)
    assert world.culprit.rank == 1 and world.culprit.pid == pids[1] and world.error
    try:
        world.barrier()
        raise AssertionError("the group is usable after a failure")
    except dist.PeerFailed as error:
        assert error.rank == 1
    smaller = world.shrink(timeout=10.0)
    assert smaller.size == size - 1 and 1 not in smaller.ranks
    numpy.testing.assert_array_equal(smaller.all_reduce(numpy.ones(2)), [size - 1] * 2)
    smaller.release()
elif case == "mismatch":
    try:
        world.all_reduce(numpy.ones(3 if rank else 4))
        raise AssertionError("different lengths went unnoticed")
    except dist.Mismatch as error:
        assert "3" in str(error) and "4" in str(error), error
        assert error.kind in ("mismatch", None)
elif case == "deadlock":
    try:
        world.recv(numpy.zeros(1), 1 - rank)
        raise AssertionError("there was no message")
    except dist.Deadlock as error:
        assert "deadlock: rank 0 waits for rank 1 in receive" in str(error), error
elif case == "timeout":
    if rank == 0:
        time.sleep(1.0)
    else:
        try:
            world.all_reduce(numpy.ones(1), timeout=0.3)
            raise AssertionError("the call ended without rank 0")
        except dist.Timeout as error:
            assert isinstance(error, TimeoutError) and isinstance(error, dist.Error)
            assert (error.rank, error.kind) == (0, "late"), vars(error)
elif case == "abort":
    if rank == 0:
        time.sleep(0.2)
        world.abort("the loss is not a number")
    try:
        world.barrier()
        raise AssertionError("the group is usable after an abort")
    except dist.Aborted as error:
        assert "the loss is not a number" in str(error), error
elif case == "messages":
    out = numpy.zeros(1)
    try:
        world.recv(out, timeout=0.1)
        raise AssertionError("there was no message")
    except dist.Timeout:
        pass
    try:
        world.monitored_barrier(0.3) if rank else time.sleep(1.5)
        assert rank == 0
    except dist.Error as error:
        assert error.missing == [0], error.missing
    world.barrier()
    assert world.error is None
elif case == "usage":
    for wrong, kind in (
        (lambda: world.all_reduce(numpy.ones(4)[::2]), ValueError),
        (lambda: world.all_reduce([1.0]), TypeError),
        (lambda: world.all_reduce(b"read only"), ValueError),
        (lambda: world.all_reduce(numpy.ones(2), out=numpy.ones(3)), ValueError),
        (lambda: world.all_reduce(numpy.ones(2), out=numpy.ones(2, "f4")), ValueError),
        (lambda: world.all_reduce(numpy.ones(2), "median"), ValueError),
        (lambda: world.all_reduce(numpy.ones(2), timout=1), TypeError),
        (lambda: world.all_reduce(numpy.ones(2), timeout=-1), ValueError),
        (lambda: world.all_reduce(numpy.ones(2), algorithm="none such"), ValueError),
        (lambda: world.broadcast(numpy.ones(2), root=size), dist.InvalidArgument),
        (lambda: world.reduce_scatter(numpy.ones(size + 1)), ValueError),
        (lambda: world.all_reduce(numpy.ones(2, ">f8")), TypeError),
        (lambda: world.all_reduce(numpy.array(["a"])), TypeError),
        (lambda: dist.init(), dist.AlreadyInitialized),
        (lambda: world.release(), ValueError),
    ):
        try:
            wrong()
        except kind:
            continue
        raise AssertionError(f"no {kind.__name__} for {wrong}")
    world.barrier()
else:
    raise SystemExit(f"unknown case {case}")
