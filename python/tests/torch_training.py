"""Trains one model in one process and on several ranks, and compares the parameters.

    python torch_training.py [--only WORDS] [--ranks 2,4] [--layouts host,tcp,hosts]

The numbers are of 64 bits. A parameter may differ by 1e-15 times the largest parameter.
"""

import argparse
import os
import sys
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch_ranks
from torch import nn

STEPS = 4
BATCH = 8
WIDTH = 8
TOLERANCE = 1e-15


def model():
    """Returns the model, with the same parameters in each process."""
    torch.manual_seed(7)
    net = nn.Sequential(
        nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )
    return net.double()


def batch(step):
    """Returns the inputs and targets of a step."""
    generator = torch.Generator().manual_seed(100 + step)
    inputs = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(BATCH, 4, generator=generator, dtype=torch.float64)


def share(tensor):
    """Returns the part of a batch that belongs to this rank."""
    rows = BATCH // dist.get_world_size()
    return tensor[dist.get_rank() * rows :][:rows]


def optimizer_of(parameters):
    """Returns the optimizer."""
    return torch.optim.Adam(parameters, lr=0.01)


def alone():
    """Trains in this process, and returns the parameters."""
    net = model()
    optimizer = optimizer_of(net.parameters())
    for step in range(STEPS):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), targets).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def steps(net, optimizer, first=0, last=STEPS, whole=False):
    """Trains on this rank's share of each batch."""
    for step in range(first, last):
        inputs, targets = batch(step)
        if not whole:
            inputs, targets = share(inputs), share(targets)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), targets).backward()
        optimizer.step()


def values(net):
    """Returns the whole parameters, of DTensors too."""
    return [
        (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
        for p in net.parameters()
    ]


def ddp(**options):
    """Returns a function that trains with DDP."""

    def train():
        net = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.001, **options)
        steps(net, optimizer_of(net.parameters()))
        return values(net)

    return train


def hook(name):
    """Returns a function that trains with DDP and one of torch's communication hooks."""

    def train():
        from torch.distributed.algorithms.ddp_comm_hooks import (
            debugging_hooks,
            default_hooks,
            optimizer_overlap_hooks,
            powerSGD_hook,
        )

        net = nn.parallel.DistributedDataParallel(model())
        if name == "allreduce":
            net.register_comm_hook(None, default_hooks.allreduce_hook)
        elif name == "allreduce_builtin":
            net._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        elif name == "powersgd":
            # The first steps are those without compression.
            state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=STEPS + 1)
            net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif name == "chained":

            def chained(_state, bucket):
                size = dist.get_world_size()
                future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
                return future.then(lambda done: done.value()[0] / size)

            net.register_comm_hook(None, chained)
        elif name == "noop":
            net.register_comm_hook(None, debugging_hooks.noop_hook)
        assert optimizer_overlap_hooks is not None
        steps(net, optimizer_of(net.parameters()), whole=name == "noop")
        return values(net)

    return train


def compressed(name):
    """Trains with a hook that loses bits; returns parameters that all ranks share."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    net = nn.parallel.DistributedDataParallel(model())
    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        net.register_comm_hook(None, getattr(default_hooks, name))
    steps(net, optimizer_of(net.parameters()))
    return values(net)


def zero():
    """Trains with ZeRO's split optimizer states."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = nn.parallel.DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    steps(net, optimizer)
    return values(net)


def fsdp1():
    """Trains with FSDP's first form."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    steps(net, optimizer_of(net.parameters()))
    with FullyShardedDataParallel.summon_full_params(net):
        return values(net)


def fsdp2():
    """Trains with FSDP's second form."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    steps(net, optimizer_of(net.parameters()))
    return values(net)


def dtensor():
    """Trains with split layers: every rank has all inputs and a part of each parameter."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel()}
    net = parallelize_module(model(), mesh, {k: plan[k] for k in ("0", "2")})
    steps(net, optimizer_of(net.parameters()), whole=True)
    return values(net)


def hybrid():
    """Trains with DDP over pairs of ranks and FSDP inside each pair."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicas", "parts"))
    net = fully_shard(model(), mesh=mesh)
    steps(net, optimizer_of(net.parameters()))
    return values(net)


def checkpoint(folder):
    """Saves a training in the middle, and continues it in new objects."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    first = fully_shard(model(), mesh=mesh)
    optimizer = optimizer_of(first.parameters())
    steps(first, optimizer, 0, 2)
    states, optimizer_states = get_state_dict(first, optimizer)
    dcp.save({"model": states, "optimizer": optimizer_states}, checkpoint_id=folder)

    second = fully_shard(model(), mesh=mesh)
    optimizer = optimizer_of(second.parameters())
    states, optimizer_states = get_state_dict(second, optimizer)
    loaded = {"model": states, "optimizer": optimizer_states}
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(
        second,
        optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    steps(second, optimizer, 2, STEPS)
    return values(second)


EXACT = {
    "ddp": ddp(),
    "ddp_views": ddp(gradient_as_bucket_view=True),
    "ddp_static": ddp(static_graph=True),
    "ddp_unused": ddp(find_unused_parameters=True),
    "hook_allreduce": hook("allreduce"),
    "hook_allreduce_builtin": hook("allreduce_builtin"),
    "hook_chained": hook("chained"),
    "hook_powersgd_start": hook("powersgd"),
    "hook_noop": hook("noop"),
    "zero": zero,
    "fsdp1": fsdp1,
    "fsdp2": fsdp2,
    "dtensor": dtensor,
    "hybrid": hybrid,
    "checkpoint": checkpoint,
}

LOSSY = ("fp16_compress_hook", "bf16_compress_hook", "powersgd")


def rank_main(name, layout, folder):
    """Trains in one rank."""
    torch_ranks.init(layout)
    try:
        if name in LOSSY:
            return compressed(name)
        if name == "checkpoint":
            return checkpoint(folder)
        return EXACT[name]()
    finally:
        dist.destroy_process_group()


class Training(unittest.TestCase):
    """Compares trainings on several ranks with a training in one process."""

    def trained(self, name, ranks, layout):
        """Returns the parameters of each rank."""
        folder = torch_ranks.temporary_folder("checkpoint")
        return torch_ranks.run(rank_main, ranks, name, layout, folder)

    def check(self, name, ranks, layout, tolerance):
        """Compares the parameters of all ranks with those of one process."""
        expected = alone()
        for rank, parameters in enumerate(self.trained(name, ranks, layout)):
            for mine, other in zip(expected, parameters, strict=True):
                worst = (mine - other).abs().max().item()
                limit = tolerance * max(1.0, mine.abs().max().item())
                self.assertLessEqual(worst, limit, f"{name} on rank {rank} of {ranks} ({layout})")


def add_cases(ranks, layouts):
    """Adds a test for each kind of training, number of ranks and layout."""
    for size in ranks:
        for layout in layouts:
            for name in (*EXACT, *LOSSY):
                if name == "hybrid" and size < 4:
                    continue
                tolerance = TOLERANCE if name in EXACT else 0.05

                def case(self, name=name, size=size, layout=layout, tolerance=tolerance):
                    self.check(name, size, layout, tolerance)

                setattr(Training, f"test_{name}_on_{size}_{layout}", case)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--layouts", default="host,tcp,hosts")
    options = parser.parse_args()
    add_cases([int(n) for n in options.ranks.split(",")], options.layouts.split(","))
    names = [n for n in unittest.TestLoader().getTestCaseNames(Training) if options.only in n]
    suite = unittest.TestSuite(Training(name) for name in names)
    outcome = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(0 if outcome.wasSuccessful() and outcome.testsRun else 1)


if __name__ == "__main__":
    main()
