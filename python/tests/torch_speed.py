"""Measures all_reduce of torch tensors on two ranks, in turns with Gloo.

    python torch_speed.py [--subclass python|cxx] [--rounds 41]

Both groups belong to the same processes. A round measures each size in four blocks of calls:
libdist, Gloo, Gloo, libdist, or the reverse. Hence both have the same share of a load that rises or
falls. The ratio of a round compares blocks that ran within a fraction of a second, so that other
programs on the machine disturb both. The result is the median of the rounds' ratios; the table also
has their quartiles.
"""

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

# The limits of the ratio to Gloo's time, for each subclass and number of bytes.
LIMITS = {"cxx": {4: 0.06, 1 << 20: 0.15}, "python": {4: 0.2, 1 << 20: 0.3}}
SIZES = (4, 1024, 1 << 16, 1 << 20, 1 << 24)
NAMES = ("libdist", "gloo")
# Calls before each block, whose times do not count.
FIRST_CALLS = 5


def calls_of(size):
    """Returns how many calls a block makes. A block over Gloo takes about 30 ms."""
    return max(3, min(200, (1 << 24) // max(size, 4096)))


def block(group, tensor):
    """Returns the time of one call in microseconds, as the mean of a block."""
    import torch.distributed as dist

    dist.barrier()
    for _ in range(min(FIRST_CALLS, calls_of(tensor.nbytes))):
        dist.all_reduce(tensor, group=group)
    begin = time.perf_counter()
    for _ in range(calls_of(tensor.nbytes)):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - begin) / calls_of(tensor.nbytes) * 1e6


def measure(rounds):
    """Returns the times of each round, for each name and size."""
    import torch
    import torch.distributed as dist
    import torch_ranks

    torch_ranks.init(timeout_s=300)
    groups = {"libdist": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    times = {(name, size): [] for name in NAMES for size in SIZES}
    for number in range(rounds + 1):
        order = NAMES if number % 2 else NAMES[::-1]
        for size in SIZES:
            tensor = torch.zeros(size // 4)
            found = dict.fromkeys(NAMES, 0.0)
            for name in (*order, *order[::-1]):
                found[name] += block(groups[name], tensor) / 2
            for name in NAMES if number else ():
                times[name, size].append(found[name])
    dist.destroy_process_group()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subclass", choices=("python", "cxx"), default="python")
    parser.add_argument("--rounds", type=int, default=41)
    options = parser.parse_args()
    os.environ["LIBDIST_TORCH_SUBCLASS"] = options.subclass
    import torch_ranks

    times = torch_ranks.run(measure, 2, options.rounds)[0]
    print("     bytes  libdist us   Gloo us   ratio      quartiles  limit")
    slow = []
    for size in SIZES:
        ours, gloo = times["libdist", size], times["gloo", size]
        ratios = [mine / other for mine, other in zip(ours, gloo, strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4)
        limit = LIMITS[options.subclass].get(size)
        print(
            f"{size:10} {statistics.median(ours):11.1f} {statistics.median(gloo):9.1f} "
            f"{ratio:7.3f} {low:7.3f} {high:6.3f} {limit or '':>6}"
        )
        if limit is not None and ratio > limit:
            slow.append(size)
    if slow:
        sys.exit(f"above the limit for {slow} bytes")


if __name__ == "__main__":
    main()
