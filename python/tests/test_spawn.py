"""`dist.spawn`: ranks that this process starts."""

import os
import time
import unittest

import numpy

import libdist as dist


def reduce(scale):
    world = dist.init()
    total = world.all_reduce(numpy.full(2, scale * (world.rank + 1)))
    return world.rank, total.tolist()


def fail(_):
    world = dist.init()
    if world.rank == 1:
        raise ValueError("rank 1 fails")
    world.barrier()


def leave(_):
    dist.init()
    os._exit(5)


def hang(_):
    dist.init()
    time.sleep(60)


class SpawnTest(unittest.TestCase):
    def test_results_come_back_in_rank_order(self):
        self.assertEqual(dist.spawn(reduce, 3, (2.0,)),
                         [(it, [12.0, 12.0]) for it in range(3)])

    def test_exception_of_a_rank_is_reported(self):
        with self.assertRaises(dist.PeerFailed) as caught:
            dist.spawn(fail, 2, (0,))
        self.assertEqual(caught.exception.rank, 1)
        self.assertIn("ValueError: rank 1 fails", str(caught.exception))
        self.assertGreater(caught.exception.pid, 0)

    def test_exit_status_of_a_rank_is_reported(self):
        with self.assertRaisesRegex(dist.PeerFailed, "exit status 5"):
            dist.spawn(leave, 1, (0,))

    def test_ranks_end_at_the_timeout(self):
        begin = time.monotonic()
        with self.assertRaisesRegex(dist.Timeout, "0, 1"):
            dist.spawn(hang, 2, (0,), timeout=2.0)
        self.assertLess(time.monotonic() - begin, 30)


if __name__ == "__main__":
    unittest.main()
