"""Runs tests of torchft's wheel with a process group of libdist in place of Gloo's.

    torchft_test.py MODULE.CLASS.TEST

The name `process_groups` runs torchft's functions for process groups on three ranks, which are
threads.
"""

import importlib
import os
import sys
import unittest
from datetime import timedelta

import torch.distributed
from torchft import process_group_test

from libdist.errors import Timeout
from libdist.torchft import ProcessGroupLibdist

# torchft knows only the messages of Gloo and NCCL.
OUR_MESSAGES = r"rank \d \(pid \d+, host \S+\) has left the group"


class ProcessGroups(process_group_test.MultiPgBaseTest):
    """torchft's test of collectives, and of failures and new meetings after them."""

    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, _backend):
        return ProcessGroupLibdist(timeout=timedelta(seconds=10))

    def assertRaisesRegex(self, kind, pattern, *arguments, **options):
        return super().assertRaisesRegex(
            kind, f"{pattern}|{OUR_MESSAGES}", *arguments, **options)

    def test_collectives(self):
        for collective in process_group_test._ALL_COLLECTIVES:
            with self.subTest(collective):
                self._run_parallel(collective)

    def test_failures(self):
        for collective in process_group_test._ALL_COLLECTIVES:
            # The first one does nothing on CPUs.
            if collective != "reduce_scatter":
                with self.subTest(collective):
                    self._run_with_resiliency(collective)

    def test_absent_rank_is_a_timeout(self):
        group = ProcessGroupLibdist(timeout=timedelta(seconds=0.2))
        with self.assertRaises(Timeout):
            group.configure(f"localhost:{self.store.port}/absent", "0", 0, 2)

    def test_failed_group_names_the_rank(self):
        def fail(rank):
            group = self.pg_pool[rank]
            group.configure(f"localhost:{self.store.port}/named", "0", rank, self.WORLD_SIZE)
            if rank == 1:
                group.abort()
                return
            with self.assertRaises(RuntimeError):
                group.barrier(torch.distributed.BarrierOptions()).wait()
            self.assertEqual(group.errored().rank, 1)

        self._collect([self.executor.submit(fail, rank) for rank in range(self.WORLD_SIZE)])


def load(name):
    """Returns the tests with a name, after the exchange of the process group."""
    loader = unittest.defaultTestLoader
    if name == "process_groups":
        return loader.loadTestsFromTestCase(ProcessGroups)
    path = name.split(".")
    length = next(i for i, word in enumerate(path) if word.endswith("_test")) + 1
    module = importlib.import_module(".".join(["torchft", *path[:length]]))
    assert hasattr(module, "ProcessGroupGloo"), "the test does not use Gloo"
    module.ProcessGroupGloo = ProcessGroupLibdist
    return loader.loadTestsFromName(".".join(path[length:]), module)


result = unittest.TextTestRunner(verbosity=2).run(load(sys.argv[1]))
sys.stdout.flush()
passed = result.testsRun > 0 and result.wasSuccessful() and not result.skipped
# Threads of torchft's servers may still run, and would keep the process alive.
os._exit(0 if passed else 1)
