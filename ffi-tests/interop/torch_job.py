"""A torch job, from init_process_group to its end, on whatever store stands at MASTER_ADDR:MASTER_PORT."""

import datetime
import os

import torch
import torch.distributed as dist

LIMIT = datetime.timedelta(seconds=60)


def expect(actual, expected):
    assert actual == expected, f"{actual!r} instead of {expected!r}"


def main():
    dist.init_process_group("gloo", init_method="env://", timeout=LIMIT)
    rank, size = dist.get_rank(), dist.get_world_size()
    expect(str(rank), os.environ["RANK"])

    values = torch.arange(1000) * (rank + 1)
    dist.all_reduce(values)
    assert torch.equal(values, torch.arange(1000) * (size * (size + 1) // 2))

    values = torch.full((10,), float(rank))
    dist.broadcast(values, size - 1)
    expect(values.tolist(), [float(size - 1)] * 10)

    group = dist.new_group(list(range(size)), timeout=LIMIT)
    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    expect(value.item(), float(size))
    dist.barrier(group)
    dist.monitored_barrier(timeout=LIMIT)

    # Objects travel through NumPy.
    try:
        import numpy  # noqa: F401
    except ImportError:
        print("without all_gather_object: NumPy is not installed")
    else:
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        expect(objects, [{"rank": other} for other in range(size)])

    dist.destroy_process_group(group)
    dist.destroy_process_group()
    print("all as expected", flush=True)


main()
