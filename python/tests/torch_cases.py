"""What the tests of torch's calls share: their helpers, and the ranks that run them."""

import datetime
import os
import sys
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch_ranks

import libdist.torch  # noqa: F401 - an old torch does not look for back ends itself

RANKS = 3
CPU = torch.device("cpu")
# These cases end with a failed group.
FAILING = ("mismatch", "abort_hooks", "timeouts")


def rank():
    """Returns the rank of this process."""
    return dist.get_rank()


def ramp(count, dtype=torch.float64):
    """Returns a tensor whose values depend on the rank."""
    return torch.arange(count, dtype=dtype) + rank()


def expect(tensor, values):
    """Compares a tensor with values."""
    wanted = values if isinstance(values, torch.Tensor) else torch.tensor(values)
    assert torch.equal(tensor, wanted.to(tensor.dtype)), f"{tensor} is not {wanted}"


def raises(kinds, function, *arguments, **options):
    """Calls a function that must fail, and returns the error."""
    try:
        function(*arguments, **options)
    except kinds as error:
        return error
    raise AssertionError(f"{function} did not fail")


def in_rank(case, store_kind, path):
    """Runs a case in one rank."""
    timeout = datetime.timedelta(seconds=60)
    if store_kind == "file":
        size, number = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        store = dist.FileStore(path, size)
        dist.init_process_group(
            "libdist", store=store, rank=number, world_size=size, timeout=timeout
        )
    else:
        dist.init_process_group("libdist", timeout=timeout)
    assert dist.get_backend() == "libdist"
    case()
    if case.__name__.removeprefix("case_") not in FAILING:
        dist.barrier()
    dist.destroy_process_group()
    return True


def add_cases(suite, module, with_files=()):
    """Adds a test for each function of a module whose name begins with `case_`.

    The cases in `with_files` run a second time with a store in a file.
    """
    for word in [name for name in module if name.startswith("case_")]:
        for kind in ("tcp", "file"):
            name = word.removeprefix("case_")
            if kind == "file" and name not in with_files:
                continue

            def test(self, case=module[word], kind=kind):
                path = os.path.join(torch_ranks.temporary_folder("store"), "store")
                torch_ranks.run(in_rank, RANKS, case, kind, path)

            setattr(suite, f"test_{name}_{kind}", test)


def run_suite(suite):
    """Runs the tests whose names contain the argument of --only, and ends the program."""
    words = sys.argv[2] if sys.argv[1:2] == ["--only"] else ""
    names = [n for n in unittest.TestLoader().getTestCaseNames(suite) if words in n]
    outcome = unittest.TextTestRunner(verbosity=2).run(
        unittest.TestSuite(suite(name) for name in names)
    )
    sys.exit(0 if outcome.wasSuccessful() and outcome.testsRun else 1)
