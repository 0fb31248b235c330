"""Every collective against its definition, for all element types."""

import sys

import numpy

import libdist as dist
from libdist import _dtypes

world = dist.init()
rank, size = world.rank, world.size


def has_ml_dtypes() -> bool:
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def types() -> list:
    numbers = [it for it in _dtypes.SIZES if has_ml_dtypes() or _dtypes.NAMES[it] not in
               ("bf16", "f8e4m3", "f8e5m2")]
    return [_dtypes.numpy_dtype(it) for it in numbers]


def filled(dtype, of_rank: int, shape=(6,)):
    """The vector of a rank: small numbers, which every type represents exactly."""
    values = (numpy.arange(numpy.prod(shape)) + of_rank) % 3
    return values.reshape(shape).astype(dtype)


def check(actual, expected) -> None:
    numpy.testing.assert_array_equal(
        numpy.asarray(actual).astype("c16"), numpy.asarray(expected).astype("c16")
    )
    assert numpy.shape(actual) == numpy.shape(expected), (numpy.shape(actual), expected)


def total(dtype, ranks, shape=(6,)):
    parts = [filled(dtype, it, shape) for it in ranks]
    if dtype == numpy.bool_:
        return numpy.logical_or.reduce(parts)
    return sum(it.astype("c16") for it in parts)


for dtype in types():
    everyone = range(size)
    x = filled(dtype, rank)
    assert world.all_reduce(x) is x
    check(x, total(dtype, everyone))
    out = numpy.zeros_like(x)
    mine = filled(dtype, rank)
    assert world.all_reduce(mine, out=out) is out
    check(out, total(dtype, everyone))
    check(mine, filled(dtype, rank))

    check(world.all_gather(mine), [filled(dtype, it) for it in everyone])
    check(world.broadcast(filled(dtype, rank), root=size - 1), filled(dtype, size - 1))
    reduced = world.reduce(filled(dtype, rank), root=size - 1)
    if rank == size - 1:
        check(reduced, total(dtype, everyone))
    else:
        assert reduced is None
    blocks = (2 * size, 3)
    scattered = world.reduce_scatter(filled(dtype, rank, blocks))
    check(scattered, total(dtype, everyone, blocks)[2 * rank : 2 * rank + 2])
    gathered = world.gather(mine, root=0)
    if rank == 0:
        check(gathered, [filled(dtype, it) for it in everyone])
    else:
        assert gathered is None
    if rank == 0:
        part = world.scatter(filled(dtype, 5, blocks))
    else:
        part = world.scatter(out=numpy.empty((2, 3), dtype))
    check(part, filled(dtype, 5, blocks)[2 * rank : 2 * rank + 2])
    exchanged = world.all_to_all(filled(dtype, rank, blocks))
    check(exchanged, numpy.concatenate(
        [filled(dtype, it, blocks)[2 * rank : 2 * rank + 2] for it in everyone]))
    check(world.scan(filled(dtype, rank)), total(dtype, range(rank + 1)))
    before = world.exscan(filled(dtype, rank))
    if rank > 0:
        check(before, total(dtype, range(rank)))

    # Vectors of different lengths.
    own = numpy.full(rank + 1, 1, dtype)
    for known in (None, [it + 1 for it in everyone]):
        for other, part in enumerate(world.all_gather_v(own, known)):
            check(part, numpy.full(other + 1, 1, dtype))
    lengths = [it + 1 for it in everyone]
    blocks_of_all = [numpy.full(it + 1, it + 1, dtype) for it in everyone]
    mine = blocks_of_all[rank]
    check(world.all_gather_v_at(mine, lengths), numpy.concatenate(blocks_of_all))
    # The last rank's block is the first in memory, and one element is between two blocks.
    ends = numpy.cumsum([it + 1 for it in reversed(lengths)])[::-1]
    places = [int(end) - length - 1 for end, length in zip(ends, lengths)]
    spaced = numpy.full(int(ends[0]), 1, dtype)
    work = world.all_gather_v_at(mine, lengths, places, out=spaced, wait=False)
    assert work.wait() is spaced
    for place, block in zip(places, blocks_of_all):
        check(spaced[place : place + len(block)], block)
        check(spaced[place + len(block) :][:1], numpy.full(1, 1, dtype))
    spaced[: places[0] + 1] = 1
    own_block = spaced[places[rank] :][: lengths[rank]]
    own_block[...] = mine
    world.all_gather_v_at(own_block, lengths, places, out=spaced)
    check(spaced[places[0] :][: lengths[0]], blocks_of_all[0])
    listed = world.gather_v(own, root=0)
    if rank == 0:
        assert [len(it) for it in listed] == [it + 1 for it in everyone]
    else:
        assert listed is None
    if rank == 0:
        part = world.scatter_v([numpy.full(it + 1, 1, dtype) for it in everyone])
    else:
        part = world.scatter_v(out=numpy.zeros(rank + 1, dtype))
    check(part, own)
    sends = [numpy.full(other + 1, 1, dtype) for other in everyone]
    part = world.reduce_scatter_v(sends)
    check(part, own.astype("c16") * (1 if dtype == numpy.bool_ else size))
    for part in world.all_to_all_v(sends):
        check(part, own)

# Operators, by number and by name.
numbers = numpy.array([rank + 1.0, -rank])
for op, expected in (
    (dist.MAX, [size, 0]),
    ("min", [1, 1 - size]),
    (dist.AVG, [(size + 1) / 2, (1 - size) / 2]),
    (dist.PRODUCT, [float(numpy.prod(numpy.arange(1, size + 1))), 0 if size > 0 else 1]),
):
    numpy.testing.assert_allclose(world.all_reduce(numbers.copy(), op), expected)
check(world.all_reduce(numpy.array([1 << rank], "u4"), "bor"), [(1 << size) - 1])
check(world.all_reduce(numpy.ones(1), dist.PREMUL_SUM, premul_scale=rank + 1.0),
      [size * (size + 1) / 2])


def keep_larger(lower, inout) -> None:
    numpy.copyto(inout, lower, where=abs(lower) > abs(inout))


with_sign = dist.Operator("larger absolute value", keep_larger, "f64", commutative=True)
check(world.all_reduce(numpy.array([(-1.0) ** rank * rank]), with_sign),
      [(-1.0) ** (size - 1) * (size - 1)])
with_sign.release()

# Lists, batches, bound calls, other calls.
tensors = {"w": numpy.full((2, 2), float(rank)), "n": numpy.full(3, rank, "i4")}
assert world.all_reduce_list(tensors) is tensors
check(tensors["w"], numpy.full((2, 2), size * (size - 1) / 2))
world.broadcast_list([tensors["n"]], root=0)
rows = numpy.full((size, 2), float(rank))
check(world.all_gather_list([rows])[0], numpy.arange(size)[:, None] * numpy.ones(2))
world.reduce_scatter_list([rows])
check(rows[rank], numpy.full(2, float(rank * size)))
with dist.batch():
    xs = [numpy.full(2, float(it)) for it in range(3)]
    for x in xs:
        world.all_reduce(x)
for it, x in enumerate(xs):
    check(x, numpy.full(2, float(it * size)))
x = numpy.ones(2)
bound = world.bind("all_reduce", x)
bound()
bound(wait=False).wait()
check(x, numpy.full(2, float(size**2)))
assert world.all_gather_counts(rank) == list(range(size))
assert world.all_equal(b"same") and (size == 1 or world.first_difference(bytes([rank > 0])) == 1)
world.barrier(label="the end")
world.monitored_barrier(10.0)
arena = dist.empty((4, 2), "f32")
arena[...] = rank
check(world.all_reduce(arena), numpy.full((4, 2), size * (size - 1) / 2))
print("types", len(types()), file=sys.stderr)
