"""Ends interpreters in the middle of things, and checks that all of them end.

    python torch_exits.py [--runs 20] [--ranks 2]

Each run starts ranks, which are forks of this process, and lets their interpreters end without the
help of the test: with a pending future, with workers of a DataLoader, and so on.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch_ranks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import libdist.torch  # noqa: F401 - the ranks need not load it

LIMIT_S = 30


def destroyed():
    """Ends as the documentation of torch asks."""
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


def forgotten():
    """Ends without destroy_process_group."""
    dist.all_reduce(torch.ones(4))


def pending():
    """Ends while an operation waits for a rank that does not call it."""
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        future = work.get_future().then(lambda done: done.value())
        globals()["kept"] = (work, future)


def dropped():
    """Ends while an operation without a work waits."""
    if dist.get_rank() == 0:
        dist.irecv(torch.ones(4), 1)


def workers():
    """Ends while the workers of a DataLoader have batches."""
    data = TensorDataset(torch.arange(64.0).reshape(64, 1))
    loader = DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True)
    net = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    for number, (batch,) in enumerate(loader):
        net(batch).sum().backward()
        if number == 3:
            break
    globals()["kept"] = (loader, net)


def groups():
    """Ends with several groups, some with traffic."""
    kept = [dist.new_group([0, 1]) for _ in range(3)]
    dist.all_reduce(torch.ones(4), group=kept[1], async_op=True).get_future()
    globals()["kept"] = kept


def callbacks():
    """Ends while callbacks of futures run."""
    futures = []
    for _ in range(20):
        work = dist.all_reduce(torch.ones(4), async_op=True)
        futures.append(work.get_future().then(lambda done: time.sleep(0.02)))
    globals()["kept"] = futures


def raised():
    """Ends by an exception."""
    dist.all_reduce(torch.ones(4), async_op=True).get_future()
    sys.stderr = open(os.devnull, "w")
    raise RuntimeError("on purpose")


SCENARIOS = (destroyed, forgotten, pending, dropped, workers, groups, callbacks, raised)


def wait(children, scenario):
    """Waits for the ranks of a run, and returns the exit statuses."""
    try:
        return torch_ranks.join(children, LIMIT_S)
    except TimeoutError as error:
        sys.exit(f"{scenario.__name__}: {error} within {LIMIT_S} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    for number in range(options.runs):
        scenario = SCENARIOS[number % len(SCENARIOS)]
        port = torch_ranks.free_port()
        children = []
        sys.stdout.flush()
        for rank in range(options.ranks):
            child = os.fork()
            if child == 0:
                os.environ.update(
                    RANK=str(rank),
                    WORLD_SIZE=str(options.ranks),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                )
                torch_ranks.init()
                scenario()
                # The end of this function ends the interpreter of the rank.
                return
            children.append(child)
        began = time.monotonic()
        statuses = wait(children, scenario)
        expected = 1 if scenario is raised else 0
        if any(status != expected for status in statuses):
            sys.exit(f"{scenario.__name__}: exit statuses {statuses}")
        seconds = time.monotonic() - began
        print(f"{number + 1:4} {scenario.__name__:10} {seconds:6.2f} s", flush=True)
    print(f"{options.runs} runs ended")


if __name__ == "__main__":
    main()
