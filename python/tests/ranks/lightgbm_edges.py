"""Unusual uses of `libdist.lightgbm`: missing parameters, exceptions, and several trainings."""

import os
import signal
import threading
import time
import warnings

import lightgbm
import numpy

import libdist as dist
import libdist.lightgbm

world = dist.init()
random = numpy.random.default_rng(world.rank)
points = random.random((200, 5))
labels = points[:, 0] > 0.5
COMMON = {"objective": "binary", "num_threads": 1, "verbosity": -1, "min_data_in_leaf": 5}


def train(parameters, rounds=3):
    """Trains on the rows of this rank."""
    return lightgbm.train({**COMMON, **parameters}, lightgbm.Dataset(points, labels), rounds)


# Without num_machines, LightGBM ignores the network, which must not stay unnoticed.
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    libdist.lightgbm.run(world, train, {"tree_learner": "data"})
assert any("on this rank alone" in str(it.message) for it in caught), caught

# One training after another, with arguments by name; no warning.
with warnings.catch_warnings():
    warnings.simplefilter("error", RuntimeWarning)
    for rounds in (2, 4):
        model = libdist.lightgbm.run(
            world, train, libdist.lightgbm.parameters(world), rounds=rounds)
        assert model.num_trees() == rounds
        assert world.all_equal(model.model_to_string().encode())

# Afterwards, LightGBM trains on one rank as ever.
assert train({}).num_trees() == 3


# An exception of the function comes out, and the group stays usable.
def fail():
    raise KeyError("a mistake in the function")


try:
    libdist.lightgbm.run(world, fail)
    raise AssertionError("no exception")
except KeyError:
    pass
assert world.all_reduce(numpy.ones(1))[0] == 2

# Ctrl-C aborts the group: rank 0 is interrupted, and rank 1 gets the error of the group.
world.barrier()


def wait_for_peer(_environment):
    """Rank 1 waits in a collective of LightGBM, because rank 0 sleeps."""
    if world.rank == 0:
        time.sleep(60)


def train_slowly():
    lightgbm.train({**COMMON, **libdist.lightgbm.parameters(world)},
                   lightgbm.Dataset(points, labels), 3, callbacks=[wait_for_peer])


if world.rank == 0:
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    libdist.lightgbm.run(world, train_slowly)
    raise AssertionError("no exception")
except KeyboardInterrupt:
    assert world.rank == 0
except dist.Aborted as error:
    assert world.rank == 1 and error.rank == 0 and "KeyboardInterrupt" in str(error), error
