"""A rank of `dist-bench --training` with torch's DistributedDataParallel on Gloo.

    training.py RANK RANKS PREFIX

The plan is in the file PREFIX.plan (format: training/plan.rs). The rank writes its sample to
PREFIX.RANK.sample. The module is a chain of functions, one per parameter. The backward pass of each
function computes the gradient of its parameter, so that gradients become ready one by one. Steps
without communication call the module without its wrapper.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Plan:
    """The plan from the driver."""

    def __init__(self, path_prefix, rank, ranks):
        with open(f"{path_prefix}.plan", encoding="ascii") as file:
            words = file.read().split()
        self.compute = words[1]
        gradient_ns, last_rank_ns, self.steps, self.warm_up, n = map(int, words[2:7])
        self.gradient_ns = last_rank_ns if rank + 1 == ranks else gradient_ns
        self.counts = list(map(int, words[7:]))
        if len(self.counts) != n:
            raise ValueError("the plan has too few element counts")


def base_value(step, param):
    """Returns the value of all elements of a gradient without the factor rank + 1."""
    return 1.0 + (step + param) % 4


class Touch(torch.autograd.Function):
    """Uses one parameter in the forward pass, and computes its gradient in the backward pass."""

    @staticmethod
    def forward(ctx, x, parameter, model, index):
        ctx.model, ctx.index, ctx.count = model, index, parameter.numel()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        ctx.model.compute()
        value = ctx.model.value(ctx.index)
        return grad, torch.full((ctx.count,), value), None, None


class Model(torch.nn.Module):
    """Parameters of the planned sizes."""

    def __init__(self, plan, rank):
        super().__init__()
        self.plan, self.rank, self.step = plan, rank, 0
        self.weights = torch.nn.ParameterList(torch.ones(count) for count in plan.counts)

    def forward(self, x):
        for index, parameter in enumerate(self.weights):
            x = Touch.apply(x, parameter, self, index)
        return x

    def value(self, index):
        return (self.rank + 1) * base_value(self.step, index)

    def compute(self):
        length = self.plan.gradient_ns
        if length == 0 or self.plan.compute == "none":
            return
        if self.plan.compute == "sleep":
            time.sleep(length / 1e9)
            return
        end = time.monotonic_ns() + length
        while time.monotonic_ns() < end:
            pass


def run_step(model, module, x):
    """Runs one step of the model or its wrapper. Returns its time in nanoseconds."""
    module.zero_grad(set_to_none=True)
    dist.barrier()
    start = time.monotonic_ns()
    module(x).sum().backward()
    return time.monotonic_ns() - start


def count_wrong(model, ranks):
    """Counts the wrong elements among three elements of each averaged gradient."""
    wrong = 0
    for index, parameter in enumerate(model.weights):
        wanted = (ranks + 1) / 2 * base_value(model.step, index)
        last = parameter.numel() - 1
        for position in (0, last // 2, last):
            wrong += not abs(parameter.grad[position].item() - wanted) < 0.01 * wanted
    return wrong


def peak_bytes():
    """Returns the peak resident memory of this process in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def main():
    rank, ranks, path_prefix = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    plan = Plan(path_prefix, rank, ranks)
    store = dist.FileStore(f"{path_prefix}.store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    model = Model(plan, rank)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    x, wrong, times = torch.ones(1), 0, []
    for step in range(plan.warm_up + plan.steps):
        model.step = step
        with_communication = run_step(model, wrapped, x)
        wrong += count_wrong(model, ranks)
        times.append((with_communication, run_step(model, model, x)))
    with open(f"{path_prefix}.{rank}.sample", "w", encoding="ascii") as file:
        file.write(f"{wrong} -1 {peak_bytes()}\n")
        for with_communication, without in times[plan.warm_up :]:
            file.write(f"{with_communication} {without}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
