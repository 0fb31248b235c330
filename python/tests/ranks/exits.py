"""Ends of the interpreter: each case must end at once, with its own exit status."""

import asyncio
import os
import sys
import time

import numpy

import libdist as dist

world = dist.init()
case, rank = sys.argv[1], world.rank
world.all_reduce(numpy.ones(2))

if case == "pending work":
    # Rank 1 never calls: the work is pending when rank 0 ends.
    if rank == 0:
        kept = world.all_reduce(numpy.ones(2), wait=False)
        dropped = world.broadcast_bytes(b"x", wait=False)
        del dropped
    else:
        time.sleep(0.5)
elif case == "pending await":
    async def wait_for_ever() -> None:
        work = world.barrier(wait=False)
        try:
            await asyncio.wait_for(work, 0.05)
        except asyncio.TimeoutError:
            pass

    if rank == 0:
        asyncio.run(wait_for_ever())
    else:
        time.sleep(0.5)
elif case == "pending then":
    if rank == 0:
        world.barrier(wait=False).then(lambda it: print("called at the end", it))
    else:
        time.sleep(0.5)
elif case == "fork":
    child = os.fork()
    if child == 0:
        try:
            world.barrier()
        except dist.NotInitialized:
            sys.exit(7)
        sys.exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7 if hasattr(os, "waitstatus_to_exitcode") else True
    world.barrier()
elif case == "workers":
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, 2, -3]) == [1, 2, 3]
    world.barrier()
elif case == "status":
    sys.exit(3)
elif case == "exception":
    # The peer learns of the failure at once, and does not wait for 5 seconds.
    if rank == 0:
        raise ValueError("rank 0 fails")
    begin = time.monotonic()
    try:
        world.barrier()
    except dist.PeerFailed as error:
        print(f"rank 1 saw {error.kind} after {time.monotonic() - begin:.2f} s", flush=True)
        assert time.monotonic() - begin < 3, "the failure was seen too late"
        sys.exit(4)
elif case == "arena":
    kept = dist.empty(1000)
    world.all_reduce(kept)
elif case != "plain":
    raise SystemExit(f"unknown case {case}")
