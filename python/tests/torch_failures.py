"""Kills ranks of trainings, and checks what the others see.

python torch_failures.py [--only WORDS]
"""

import os
import signal
import sys
import threading
import time
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch_ranks
from torch import nn

import libdist.torch
from libdist.errors import PeerFailed

# The limit between the end of a killed process and the exception on each survivor. The kernel needs
# some time from the signal to the end, because it first releases the memory of torch. On a busy
# machine, a survivor may wait long for a processor: the limit holds for one of several deaths.
DETECTION_S = 0.1
BUSY_DETECTION_S = 2
DEATHS = 4
RANKS = 3


def training(layout="host"):
    """Returns a model under DDP and its optimizer."""
    torch_ranks.init(layout)
    return ddp()


def ddp():
    """Returns a model under DDP and its optimizer, the same on all ranks."""
    torch.manual_seed(3)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1)))
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


def step(net, optimizer):
    """Makes one step, and returns the loss."""
    optimizer.zero_grad()
    loss = net(torch.ones(4, 64)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def killed_rank(victim, layout, folder, typed):
    """Trains until the victim kills itself; returns when and how this rank learnt of it."""
    net, optimizer = training(layout)
    for number in range(1000):
        if number == 10 and dist.get_rank() == victim:
            with open(os.path.join(folder, "death"), "w") as file:
                file.write(f"{os.getpid()} {time.monotonic()}")
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            if typed:
                with libdist.torch.typed_errors():
                    step(net, optimizer)
            else:
                step(net, optimizer)
        except RuntimeError as error:
            known = libdist.torch.failure()
            return {
                "time": time.monotonic(),
                "text": str(error),
                "typed": isinstance(error, PeerFailed),
                "failure": (type(known).__name__, known.rank, known.pid),
            }
    return None


def shrinking(victims):
    """Trains, loses ranks one after the other, and continues with the others."""
    net, optimizer = training()
    me = dist.get_rank()
    losses, sizes, done = [], [dist.get_world_size()], 0
    while done < 60:
        if me in victims and done == victims[me]:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            losses.append(step(net, optimizer))
            done += 1
        except RuntimeError:
            libdist.torch.shrink()
            sizes.append(dist.get_world_size())
            done = continue_together(net, done)
            state = [p.detach().clone() for p in net.parameters()]
            net, optimizer = ddp()
            with torch.no_grad():
                for mine, old in zip(net.parameters(), state, strict=True):
                    mine.copy_(old)
    group = dist.new_group(list(range(dist.get_world_size())))
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    same = torch.cat([p.detach().flatten() for p in net.parameters()])
    parts = [torch.empty_like(same) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, same)
    dist.destroy_process_group()
    return {
        "rank": me,
        "sizes": sizes,
        "losses": (losses[0], losses[-1]),
        "total": total.item(),
        "equal": all(torch.equal(part, same) for part in parts),
    }


def continue_together(net, done):
    """Gives all ranks the parameters of the rank that is furthest; returns its step."""
    counts = torch.tensor([done, dist.get_rank()])
    all_counts = [torch.empty_like(counts) for _ in range(dist.get_world_size())]
    dist.all_gather(all_counts, counts)
    best = max(all_counts, key=lambda pair: (pair[0].item(), -pair[1].item()))
    with torch.no_grad():
        for parameter in net.parameters():
            dist.broadcast(parameter, int(best[1]))
    return int(best[0])


class Failures(unittest.TestCase):
    """Deaths in trainings with DDP."""

    def survivors(self, victim, layout, typed):
        """Kills one rank, and returns what the others have seen, and the victim's process id.

        It also returns when the victim got the signal, and when its process ended.
        """
        shared = torch_ranks.temporary_folder("death")
        arguments = (victim, layout, shared, typed)
        children, folder = torch_ranks.start(killed_rank, RANKS, arguments)
        ended = []

        def observe():
            os.waitid(os.P_PID, children[victim], os.WEXITED | os.WNOWAIT)
            ended.append(time.monotonic())

        observer = threading.Thread(target=observe)
        observer.start()
        observer.join(torch_ranks.LIMIT_S)
        statuses = torch_ranks.join(children)
        self.assertEqual(statuses[victim], -signal.SIGKILL)
        with open(os.path.join(shared, "death")) as file:
            pid, moment = file.read().split()
        seen = {}
        import pickle

        for rank in range(RANKS):
            if rank != victim:
                with open(os.path.join(folder, str(rank)), "rb") as file:
                    kind, value = pickle.load(file)
                self.assertEqual(kind, "result", value)
                seen[rank] = value
        return seen, int(pid), float(moment), ended[0]

    def check_death(self, victim, layout, typed):
        """Checks that all survivors learn of the death in time, with rank and process."""
        delays = []
        while len(delays) < DEATHS and min(delays, default=1) > DETECTION_S:
            delays.append(self.detection_time(victim, layout, typed))
        self.assertLess(min(delays), DETECTION_S, delays)
        self.assertLess(max(delays), BUSY_DETECTION_S, delays)

    def detection_time(self, victim, layout, typed):
        """Kills one rank, checks the errors of the others, and returns the longest delay."""
        seen, pid, killed, ended = self.survivors(victim, layout, typed)
        delays = []
        for rank, value in seen.items():
            self.assertIsNotNone(value, f"rank {rank} saw no error")
            self.assertEqual(value["failure"], ("PeerFailed", victim, pid))
            self.assertIn(str(pid), value["text"])
            self.assertIn(f"rank {victim}", value["text"])
            # The errors of the C++ subclass keep their types on the way through torch.
            if typed or os.environ.get("LIBDIST_TORCH_SUBCLASS") == "cxx":
                self.assertTrue(value["typed"], value["text"])
            delays.append(value["time"] - ended)
            print(
                f"rank {rank} learnt of the death {(value['time'] - killed) * 1000:.1f} ms after "
                f"the signal and {delays[-1] * 1000:.1f} ms after the end of the process",
                flush=True,
            )
        return max(delays)

    def test_killed_rank_in_ddp(self):
        self.check_death(1, "host", typed=False)

    def test_killed_rank_0_in_ddp(self):
        self.check_death(0, "host", typed=False)

    def test_killed_rank_raises_peer_failed(self):
        self.check_death(2, "host", typed=True)

    def test_killed_rank_over_tcp(self):
        self.check_death(1, "tcp", typed=True)

    def check_shrinking(self, ranks, victims):
        """Checks that the remaining ranks continue with equal parameters."""
        children, folder = torch_ranks.start(shrinking, ranks, (victims,))
        statuses = torch_ranks.join(children)
        import pickle

        for rank in range(ranks):
            if rank in victims:
                self.assertEqual(statuses[rank], -signal.SIGKILL)
                continue
            with open(os.path.join(folder, str(rank)), "rb") as file:
                kind, value = pickle.load(file)
            self.assertEqual(kind, "result", value)
            self.assertEqual(value["sizes"][0], ranks)
            self.assertEqual(value["sizes"][-1], ranks - len(victims))
            self.assertEqual(value["total"], ranks - len(victims))
            self.assertTrue(value["equal"])
            self.assertLess(value["losses"][1], value["losses"][0])

    def test_training_continues_after_a_death(self):
        self.check_shrinking(3, {1: 20})

    def test_training_continues_without_the_rank_of_the_store(self):
        self.check_shrinking(3, {0: 20})

    def test_training_continues_after_two_deaths(self):
        self.check_shrinking(4, {1: 15, 3: 35})


def main():
    words = sys.argv[2] if sys.argv[1:2] == ["--only"] else ""
    names = [n for n in unittest.TestLoader().getTestCaseNames(Failures) if words in n]
    suite = unittest.TestSuite(Failures(name) for name in names)
    outcome = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(0 if outcome.wasSuccessful() and outcome.testsRun else 1)


if __name__ == "__main__":
    main()
