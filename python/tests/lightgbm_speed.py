"""Compares LightGBM's training time over libdist with the time over its own sockets, on 2 ranks.

    lightgbm_speed.py [--pairs N]

The programs run in turns. The table has the median times, and the median of the ratios of the
pairs; the goal is a ratio of at most 0.6. Other programs on the machine make the times useless.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from lightgbm_programs import c_program, compile_example, python_program, train

# Rows, features, leaves and rounds. Few rows for each rank make communication matter.
SIZES = ((2000, 10, 127, 50), (2000, 28, 127, 50), (1000, 60, 63, 50), (1000, 300, 63, 10),
         (500, 1000, 31, 10))
GOAL = 0.6


def compare(command, pairs):
    """Returns the median times over libdist and over sockets, and the median of their ratios."""
    ours, theirs = [], []
    for number in range(pairs + 1):
        results = [train(command(network), 2) for network in ("libdist", "sockets")]
        assert results[0].model == results[1].model
        # The first pair warms the caches of the file system.
        if number > 0:
            ours.append(results[0].seconds)
            theirs.append(results[1].seconds)
    ratios = [mine / other for mine, other in zip(ours, theirs)]
    return statistics.median(ours), statistics.median(theirs), statistics.median(ratios)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    print("| rows, features, leaves, rounds | program | libdist, s | sockets, s | ratio |")
    print("| --- | --- | --- | --- | --- |")
    best = 1.0
    with tempfile.TemporaryDirectory() as folder:
        program = compile_example(Path(folder))
        for sizes in SIZES:
            for title, command in (
                ("C", lambda network: c_program(program, network, *sizes)),
                ("Python", lambda network: python_program(network, *sizes)),
            ):
                ours, theirs, ratio = compare(command, pairs)
                best = min(best, ratio)
                print(f"| {', '.join(map(str, sizes))} | {title} | {ours:.3f} | {theirs:.3f} | "
                      f"{ratio:.2f} |", flush=True)
    return 0 if best <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
