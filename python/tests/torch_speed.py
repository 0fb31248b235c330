"""Measures all_reduce of torch tensors on two ranks, in turns with Gloo.

    python torch_speed.py [--subclass python|cxx] [--rounds 15]

Both groups belong to the same processes. A round measures each size over each group, in an order
that changes from round to round; the table has the medians of all rounds.
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


def calls_of(size):
    """Returns how many calls a round makes."""
    return max(5, min(200, (1 << 23) // max(size, 4096)))


def measure(rounds):
    """Returns the medians of each size, for libdist and for Gloo."""
    import torch
    import torch.distributed as dist
    import torch_ranks

    torch_ranks.init(timeout_s=300)
    groups = {"libdist": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    times = {(name, size): [] for name in groups for size in SIZES}
    for number in range(rounds + 1):
        order = list(groups) if number % 2 else list(groups)[::-1]
        for size in SIZES:
            tensor = torch.zeros(size // 4)
            for name in order:
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(calls_of(size)):
                    dist.all_reduce(tensor, group=groups[name])
                seconds = (time.perf_counter() - begin) / calls_of(size)
                if number:
                    times[name, size].append(seconds * 1e6)
    dist.destroy_process_group()
    return {key: statistics.median(values) for key, values in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subclass", choices=("python", "cxx"), default="python")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    os.environ["LIBDIST_TORCH_SUBCLASS"] = options.subclass
    import torch_ranks

    medians = torch_ranks.run(measure, 2, options.rounds)[0]
    print(f"{'bytes':>10} {'libdist us':>12} {'Gloo us':>12} {'ratio':>7} {'limit':>6}")
    slow = []
    for size in SIZES:
        ours, gloo = medians["libdist", size], medians["gloo", size]
        limit = LIMITS[options.subclass].get(size)
        print(f"{size:10} {ours:12.1f} {gloo:12.1f} {ours / gloo:7.3f} {limit or '':>6}")
        if limit is not None and ours / gloo > limit:
            slow.append(size)
    if slow:
        sys.exit(f"above the limit for {slow} bytes")


if __name__ == "__main__":
    main()
