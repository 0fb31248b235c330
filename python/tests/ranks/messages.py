"""Messages, byte strings, objects, groups and stores of the world."""

import numpy

import libdist as dist
from libdist import objects

world = dist.init()
rank, size = world.rank, world.size
after, before = (rank + 1) % size, (rank - 1) % size

# Messages.
send = world.send(numpy.arange(3.0) + rank, after, tag=7, wait=False)
out = numpy.zeros(5)
status = world.recv(out, before, 7)
assert status == (before, 7, 3, status.dtype), status
numpy.testing.assert_array_equal(out, [before, before + 1, before + 2, 0, 0])
send.wait()
work = world.recv(out, tag=8, wait=False)
world.send(numpy.ones(2), after, 8)
assert work.wait() is out and (work.source, work.tag, work.received_count) == (before, 8, 2)
numbers = world.sendrecv(numpy.full(2, rank), after, numpy.zeros(2, int), before)
numpy.testing.assert_array_equal(numbers, [before, before])
world.send_bytes(b"x" * (rank + 1), after, 9)
found = world.probe(before, 9)
assert found == (before, 9, before + 1, found.dtype)
assert world.probe(before, 1000, timeout=0) is None
message = world.probe(before, 9, take=True)
assert message.recv_bytes() == b"x" * (before + 1)
world.send_bytes(b"", after)
assert world.recv_bytes(before) == b""

# Byte strings and objects.
assert world.all_gather_bytes(b"r" * rank) == [b"r" * it for it in range(size)]
assert world.broadcast_bytes(b"hello" if rank == 0 else b"") == b"hello"
assert world.gather_bytes(b"%d" % rank, root=1) == (
    [b"%d" % it for it in range(size)] if rank == 1 else None)
assert world.scatter_bytes([b"%d" % it for it in range(size)] if rank == 0 else None) == b"%d" % rank
work = world.all_gather_bytes(b"later", wait=False)
assert work.wait() == work.wait() == [b"later"] * size
assert objects.all_gather(world, {"rank": rank}) == [{"rank": it} for it in range(size)]
assert objects.broadcast(world, ["root"] if rank == 0 else None) == ["root"]
assert objects.gather(world, rank, root=1) == (list(range(size)) if rank == 1 else None)
assert objects.scatter(world, list("abcdefgh")[:size] if rank == 0 else None) == "abcdefgh"[rank]
objects.send(world, (rank, "text"), after)
assert objects.recv(world, before) == (before, "text")

# Groups.
half = world.split(rank % 2, key=-rank, name="half")
assert half is not None and half.ranks == [it for it in reversed(range(size)) if it % 2 == rank % 2]
assert half.rank_to_global(half.rank) == rank and half.rank_from_global(rank) == half.rank
numpy.testing.assert_array_equal(half.all_reduce(numpy.ones(1)), [half.size])
assert world.split(None if rank else 0, name="alone") is None or rank == 0
pair = world.new([1, 0], timeout=5.0)
assert (pair is None) == (rank > 1)
if pair is not None:
    assert (pair.rank, pair.size, pair.timeout) == (1 - rank, 2, 5.0)
    pair.release()
description = world.describe()
assert len(description["members"]) == size, description
assert world.flight_record() is not None
assert world.name == "world" and world.backend and world.error is None and world.culprit is None
assert world.local_size == size and world.host_count == 1 and world.local_rank == rank
world.timeout = 30.0
assert world.timeout == 30.0 and world.sequence > 0
half.release()
dist.finalize()
assert not dist.is_initialized()
