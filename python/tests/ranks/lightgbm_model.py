"""Trains a model of LightGBM over libdist or over LightGBM's own sockets, and prints its hash.

    lightgbm_model.py libdist|sockets [rows features leaves rounds]
"""

import hashlib
import socket
import sys
import time

import lightgbm
import numpy

import libdist as dist
import libdist.lightgbm

network = sys.argv[1]
rows, features, leaves, rounds = map(int, sys.argv[2:] or (600, 30, 15, 8))
world = dist.init()
random = numpy.random.default_rng(5)
points = random.random((rows, features))
labels = (points[:, :5] - 0.5) @ numpy.arange(1.0, 6.0) + random.random(rows) > 0.5
own = slice(world.rank, None, world.size)


def free_port():
    """Returns a port that no program uses at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train(**more):
    """Trains, and returns the model and the seconds without the preparation of the data."""
    times = []

    def note_time(_environment):
        times.append(time.perf_counter())

    note_time.before_iteration = True
    parameters = {
        # One way to make histograms, so that the order of additions does not depend on the time.
        "force_col_wise": True, "deterministic": True, "num_threads": 1, "verbosity": -1,
        "objective": "binary", "num_leaves": leaves, "min_data_in_leaf": 5,
        **libdist.lightgbm.parameters(world), **more,
    }
    data = lightgbm.Dataset(points[own], labels[own])
    model = lightgbm.train(parameters, data, num_boost_round=rounds, callbacks=[note_time])
    return model, time.perf_counter() - times[0]


if network == "libdist":
    model, seconds = libdist.lightgbm.run(world, train)
else:
    port = free_port()
    ports = world.all_gather(numpy.array([port])).ravel()
    machines = ",".join(f"127.0.0.1:{it}" for it in ports)
    model, seconds = train(machines=machines, local_listen_port=port)
assert model.num_trees() == rounds
# The list of parameters behind the trees names ports.
trees = model.model_to_string().partition("\nend of trees")[0]
digest = hashlib.sha256(trees.encode()).digest()
assert world.all_equal(digest)
if world.rank == 0:
    print(f"model {digest.hex()[:16]}, {rounds} rounds in {seconds:.3f} s over {network}")
