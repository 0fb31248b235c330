"""The reducer, the shard, the outer optimizer and the sampler."""

import numpy

import libdist as dist
from libdist import reducer as votes

world = dist.init()
rank, size = world.rank, world.size


def gradient(of_rank: int, shape) -> numpy.ndarray:
    return numpy.arange(numpy.prod(shape), dtype="f8").reshape(shape) * (of_rank + 1)


mean = (size + 1) / 2

# Parameters of the reducer's memory, and of the caller's.
weights = numpy.full((3, 4), float(rank))
bias, bias_grad = numpy.zeros(5), numpy.zeros(5)
parameters = [dist.Parameter("w", weights), dist.Parameter("b", bias, bias_grad)]
with dist.Reducer(world, parameters, name="model") as reducer:
    numpy.testing.assert_array_equal(weights, numpy.zeros((3, 4)))
    for step in range(3):
        reducer.begin()
        reducer.grad("w")[...] = gradient(rank, (3, 4))
        bias_grad[...] = gradient(rank, 5)
        if step == 2:
            reducer.ready("w", "b")
        else:
            reducer.ready("w")
            reducer.ready(1)
        assert (reducer.end() if step else reducer.end(wait=False).wait()) == votes.COMMIT
        numpy.testing.assert_allclose(reducer.result("w"), gradient(0, (3, 4)) * mean)
        numpy.testing.assert_allclose(bias_grad, gradient(0, 5) * mean)
    both = numpy.concatenate([reducer.result(0).ravel(), bias_grad])
    numpy.testing.assert_allclose(reducer.norm(), numpy.linalg.norm(both))
    reducer.clip(1.0)
    both = numpy.concatenate([reducer.result(0).ravel(), bias_grad])
    numpy.testing.assert_allclose(numpy.linalg.norm(both), 1.0)
    reducer.begin()
    assert reducer.end(votes.SKIP if rank == 0 else votes.NON_FINITE) == (
        votes.SKIP | votes.NON_FINITE if size > 1 else votes.SKIP)
    assert reducer.check("params") == []
    bias[...] = rank
    assert size == 1 or "b" in reducer.check()[0]
    reducer.broadcast(root=size - 1)
    numpy.testing.assert_array_equal(bias, numpy.full(5, float(size - 1)))
    assert reducer.stats["steps"] == 4 and b"w" in reducer.layout
    assert reducer.describe()["buckets"]

# Sparse rows, weights, and a callback for each bucket.
table = numpy.zeros((10, 2))
with dist.Reducer(world, [dist.Parameter("t", table, sparse_rows=True)], divide="none") as reducer:
    reducer.begin()
    reducer.ready_rows("t", numpy.array([rank, 7]), numpy.ones((2, 2)))
    reducer.end()
    rows, values = reducer.rows("t")
    assert rows.tolist() == [*range(size), 7], rows
    numpy.testing.assert_array_equal(values[-1], [size, size])
buckets: list = []
with dist.Reducer(world, {"w": weights}, divide="weighted") as reducer:
    reducer.on_bucket(buckets.append)
    reducer.begin(weight=float(rank))
    reducer.grad(0)[...] = rank
    reducer.ready(0)
    reducer.end()
    total = size * (size - 1) / 2
    expected = sum(it * it for it in range(size)) / total if size > 1 else None
    if expected is not None:
        numpy.testing.assert_allclose(reducer.result(0), numpy.full((3, 4), expected))
    assert buckets == [[0]], buckets


# A function of the program reduces the buckets.
def through_rank_0(group, bucket):
    """Adds up the gradients on rank 0, and sends the sum to all."""
    assert (bucket.index, bucket.count, sorted(bucket.parameters)) == (0, 1, [0, 1]), bucket
    assert bucket.step == steps and len(bucket.offsets) == 2
    sum_of_all = group.reduce(bucket.data, root=0)
    group.broadcast(bucket.data if sum_of_all is None else sum_of_all, root=0)
    bucket.bytes_sent = 4
    if sum_of_all is not None:
        bucket.data[...] = sum_of_all


def failing(_group, _bucket):
    raise KeyError("of the hook")


v, b = numpy.zeros((2, 3), "f4"), numpy.zeros(4, "f4")
with dist.Reducer(world, {"v": v, "b": b}, hook=through_rank_0) as reducer:
    for steps in range(3):
        reducer.begin()
        reducer.grad("v")[...] = gradient(rank, (2, 3))
        reducer.grad("b")[...] = gradient(rank, 4)
        reducer.ready("v", "b")
        (reducer.end() if steps else reducer.end(wait=False).wait())
        numpy.testing.assert_allclose(reducer.result("v"), gradient(0, (2, 3)) * mean, rtol=1e-6)
        numpy.testing.assert_allclose(reducer.result("b"), gradient(0, 4) * mean, rtol=1e-6)
        assert reducer.hook_failure is None
    # The hook says that it has sent 4 bytes.
    assert reducer.stats["bytes_saved"] == reducer.stats["bytes_reduced"] - 4, reducer.stats
for wait in (True, False):
    doomed = world.split(rank)
    with dist.Reducer(doomed, {"v": v}, hook=failing) as reducer:
        reducer.begin()
        reducer.grad("v")[...] = 1
        reducer.ready("v")
        try:
            reducer.end() if wait else reducer.end(wait=False).wait()
            raise SystemExit("the failure of the hook was not reported")
        except dist.Error as error:
            assert isinstance(error.__cause__, KeyError), error.__cause__
    doomed.release()

# The shard: SGD with momentum, whose state is split over the ranks.
w = numpy.zeros(10, "f4")
velocity, reference = numpy.zeros(10, "f4"), numpy.zeros(10, "f4")
with dist.Reducer(world, {"w": w}, flags="sharded") as reducer, \
        dist.Shard(reducer, ["velocity"]) as shard:
    for _ in range(3):
        reducer.begin()
        reducer.grad("w")[...] = gradient(rank, 10)
        reducer.ready("w")
        reducer.end()
        state = shard.state("velocity")
        for it in shard.ranges():
            part = state[it.offset : it.offset + it.count]
            part *= 0.5
            part += it.grad
            it.data[...] -= 0.1 * part
        shard.gather(wait=False).wait()
        velocity = velocity * numpy.float32(0.5) + (gradient(0, 10) * mean).astype("f4")
        reference -= numpy.float32(0.1) * velocity
        numpy.testing.assert_allclose(w, reference, rtol=1e-5)
    saved = shard.save()
    assert (saved is not None) == (rank == 0)
    shard.load(saved or b"")

# Local training with agreements.
w = numpy.zeros(4, "f4")
with dist.OuterOptimizer(world, {"w": w}, every=2, optimizer="average") as outer:
    w += rank
    assert outer.step() == (None, 0)
    w += rank
    fragment, vote = outer.step()
    assert (fragment, vote) == (0, 0)
    numpy.testing.assert_allclose(w, numpy.full(4, size - 1.0))
    values, _ = outer.values(0)
    numpy.testing.assert_allclose(values, w)
    outer.load(outer.save() if rank == 0 else b"")
    assert outer.stats["updates"] == 1

# The sampler gives every index once.
sampler = dist.Sampler(6 * size, seed=3)
sampler.set_epoch(1)
mine = list(sampler)
assert len(mine) == len(sampler) == 6 and sampler.position == 6
everything = sorted(sum((list(it) for it in world.all_gather(numpy.array(mine))), []))
assert everything == list(range(6 * size)), everything
sampler.set_epoch(1)
for position, index in enumerate(sampler):
    if position == 2:
        break
assert sampler.position == 3 and sampler.next(2) == mine[3:5]
sampler.position = 1
assert list(sampler) == mine[1:]
assert list(dist.Sampler(7, replicas=3, rank=1, shuffle=False)) == [1, 4, 0]
assert len(dist.Sampler(7, replicas=3, rank=1, drop_last=True)) == 2
