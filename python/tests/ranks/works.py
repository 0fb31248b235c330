"""Works: waiting, asyncio, callbacks, and buffers of works that the program drops."""

import asyncio
import gc
import threading

import numpy

import libdist as dist

world = dist.init()
rank, size = world.rank, world.size

# Two operations at once, in an event loop.


async def overlapped() -> list:
    first = world.all_reduce(numpy.ones(3), wait=False)
    second = world.all_gather_bytes(bytes([rank]), wait=False)
    return list(await asyncio.gather(asyncio.wait_for(first, 30), asyncio.wait_for(second, 30)))


for _ in range(20):
    summed, gathered = asyncio.run(overlapped())
    numpy.testing.assert_array_equal(summed, numpy.full(3, float(size)))
    assert gathered == [bytes([it]) for it in range(size)]


async def late() -> float:
    """The event loop runs while the work is pending."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    ticker = asyncio.ensure_future(tick())
    if rank == 0:
        await asyncio.sleep(0.3)
    result = await world.all_reduce(numpy.ones(1), wait=False)
    ticker.cancel()
    if rank == 1:
        assert ticks > 5, ticks
    return float(result[0])


assert asyncio.run(late()) == size

# A cancelled wait leaves the operation and the group usable.


async def cancelled() -> None:
    work = world.all_reduce(numpy.ones(1), wait=False)
    if rank == 0:
        task = asyncio.ensure_future(asyncio.wait_for(work, 30))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
    assert float((await work)[0]) == size


asyncio.run(cancelled())

# Callbacks and time-outs.
work = world.all_reduce(numpy.full(2, 2.0), wait=False, label="then")
assert work.then(lambda it: it.wait().sum()).result(30) == 4.0 * size
assert work.done() and work.exception() is None and work.sequence > 0 and work.elapsed > 0
try:
    world.all_reduce(numpy.ones(1), wait=False).then(lambda it: 1 // 0).result(30)
    raise AssertionError("the error of a callback was lost")
except ZeroDivisionError:
    pass
if rank == 0:
    world.recv_bytes(1, 5)
    pending = world.barrier(wait=False)
else:
    pending = world.barrier(wait=False)
    try:
        pending.wait(0.05)
        raise AssertionError("the barrier ended without rank 0")
    except dist.InProgress as error:
        assert isinstance(error, TimeoutError) and error.operation == "barrier"
    assert not pending.done()
    if rank == 1:
        world.send_bytes(b"", 0, 5)
pending.wait()
works = [world.all_reduce(numpy.ones(4), wait=False) for _ in range(5)]
assert dist.wait_any([None, *works]) >= 1
assert all(float(it[0]) == size for it in dist.wait_all(works))

# Dropped works keep their buffers until the operations have ended.
for _ in range(200):
    world.all_reduce(numpy.ones(50_000), wait=False)
    world.all_gather_bytes(b"x" * 1000, wait=False)
    gc.collect(0)
world.barrier()

# Blocking calls of other threads, on groups of their own.
groups = [world.split(0, name=f"thread {it}") for it in range(3)]
sums: list = []


def repeat(group) -> None:
    x = numpy.ones(8)
    for _ in range(50):
        group.all_reduce(x, dist.AVG)
    sums.append(float(x.sum()))


threads = [threading.Thread(target=repeat, args=(it,)) for it in groups]
for it in threads:
    it.start()
for it in threads:
    it.join(60)
assert sums == [8.0] * 3, sums

# The GIL is free during a blocking call: another thread counts while rank 1 waits.
dist.set_interruptible(rank % 2 == 0)
count, stop = 0, threading.Event()


def counter() -> None:
    global count
    while not stop.is_set():
        count += 1


thread = threading.Thread(target=counter)
thread.start()
if rank == 0:
    stop.wait(0.2)
start = count
world.barrier()
stop.set()
thread.join()
assert rank == 0 or count - start > 1000, count - start
