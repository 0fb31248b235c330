"""The back end LIBDIST of Ray's collective library, on actors of a local cluster."""

import os
import shutil
import tempfile
import time
import unittest

import numpy
import ray
import torch
from ray.util import collective
from ray.util.collective.types import ReduceOp

import libdist
import libdist.ray

RANKS = 3
# Ray starts a process for each actor, which takes long on a busy machine.
LIMIT_S = 300


@ray.remote(num_cpus=0, max_restarts=0)
class Actor:
    """One rank of a group."""

    def __init__(self, rank):
        self.rank = rank

    def use_every_operation(self, group):
        """Calls every operation with arrays of numpy and torch, and checks the results."""
        for kind in (numpy.asarray, torch.tensor):
            self.use_with(kind, group)
        collective.barrier(group_name=group)
        return collective.get_rank(group), collective.get_collective_group_size(group)

    def use_with(self, kind, group):
        """Calls every operation with one kind of array."""
        rank = self.rank
        for op, expected in ((ReduceOp.SUM, 6.0), (ReduceOp.PRODUCT, 6.0), (ReduceOp.MIN, 1.0),
                             (ReduceOp.MAX, 3.0)):
            values = kind([rank + 1.0, rank + 1.0])
            collective.allreduce(values, group_name=group, op=op)
            assert values.tolist() == [expected] * 2, values
        values = kind([rank + 1.0])
        collective.reduce(values, dst_rank=2, group_name=group)
        assert values.tolist() == [6.0 if rank == 2 else rank + 1.0], values
        values = kind([float(rank)])
        collective.broadcast(values, src_rank=1, group_name=group)
        assert values.tolist() == [1.0], values
        gathered = [kind([0.0, 0.0]) for _ in range(RANKS)]
        collective.allgather(gathered, kind([float(rank), 7.0]), group_name=group)
        assert [it.tolist() for it in gathered] == [[0.0, 7.0], [1.0, 7.0], [2.0, 7.0]], gathered
        own = kind([0.0])
        collective.reducescatter(own, [kind([it + rank * 10.0]) for it in range(RANKS)],
                                 group_name=group)
        assert own.tolist() == [30.0 + 3 * rank], own
        if rank == 0:
            collective.send(kind([5.0, 6.0]), 2, group_name=group)
        elif rank == 2:
            received = kind([0.0, 0.0])
            collective.recv(received, 0, group_name=group)
            assert received.tolist() == [5.0, 6.0], received

    def destroy(self, group):
        """Leaves the group."""
        collective.destroy_collective_group(group)

    def wait_for_all(self, group):
        """Returns the rank that failed, and the seconds until the error."""
        start = time.monotonic()
        try:
            collective.barrier(group_name=group)
        except libdist.PeerFailed as error:
            return error.rank, time.monotonic() - start
        return None

    def end(self):
        """Ends the process of this actor without leaving its groups."""
        os._exit(1)


class RayTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The paths of Ray's sockets must be short.
        cls.folder = tempfile.mkdtemp(prefix="ray-")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=cls.folder,
                 runtime_env={"worker_process_setup_hook": libdist.ray.register})
        libdist.ray.register()
        libdist.ray.register()

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()
        shutil.rmtree(cls.folder, ignore_errors=True)

    def create(self, group):
        """Returns the actors of a new group."""
        actors = [Actor.remote(rank) for rank in range(RANKS)]
        collective.create_collective_group(actors, RANKS, list(range(RANKS)), backend="libdist",
                                           group_name=group)
        return actors

    def test_operations_on_numpy_and_torch(self):
        actors = self.create("operations")
        calls = [it.use_every_operation.remote("operations") for it in actors]
        self.assertEqual(ray.get(calls, timeout=LIMIT_S), [(it, RANKS) for it in range(RANKS)])

    def test_group_with_the_name_of_an_earlier_group(self):
        for _ in range(2):
            actors = self.create("again")
            ray.get([it.use_every_operation.remote("again") for it in actors], timeout=LIMIT_S)
            ray.get([it.destroy.remote("again") for it in actors], timeout=LIMIT_S)

    def test_death_of_an_actor_is_reported_by_rank(self):
        actors = self.create("death")
        ray.get([it.use_every_operation.remote("death") for it in actors], timeout=LIMIT_S)
        waiting = [it.wait_for_all.remote("death") for it in actors[:2]]
        actors[2].end.remote()
        for rank, seconds in ray.get(waiting, timeout=LIMIT_S):
            self.assertEqual(rank, 2)
            self.assertLess(seconds, 30)


if __name__ == "__main__":
    unittest.main(verbosity=2)
