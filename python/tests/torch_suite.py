"""Runs PyTorch's own tests of a back end, `DistributedTest` of the installed wheel.

    python torch_suite.py --ranks 4 [--only WORDS] [--minutes N] [--subclass python|cxx]

The back end answers to the name "gloo", so that the tests treat it as they treat Gloo. A test that
fails runs a second time over Gloo. It counts as failed only if Gloo passes it.

The ranks are forks of this process, which has imported torch but has no group: a start of new
interpreters would take most of the time.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
import unittest

import torch_ranks


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", default="", help="a part of the names of the tests")
    parser.add_argument("--minutes", type=float, default=20, help="the time for all tests")
    parser.add_argument("--gloo", action="store_true", help="run over Gloo itself")
    parser.add_argument("--subclass", choices=("python", "cxx"), default="python")
    parser.add_argument("--report", help="a file for the results, in JSON")
    return parser.parse_args()


OPTIONS = parse()
FOLDER = torch_ranks.temporary_folder("suite")

# The tests and torch print much. What this program prints goes to the terminal.
TERMINAL = os.fdopen(os.dup(1), "w", buffering=1)
LOG = open(os.path.join(FOLDER, "log.txt"), "w")

# The tests read these variables when they are imported.
os.environ.update(
    BACKEND="gloo",
    WORLD_SIZE=str(OPTIONS.ranks),
    TEMP_DIR=FOLDER,
    INIT_METHOD="env://",
    OMP_NUM_THREADS="1",
    LIBDIST_TORCH_SUBCLASS=OPTIONS.subclass,
    LIBDIST_AS_GLOO="0" if OPTIONS.gloo else "1",
)

os.dup2(LOG.fileno(), 1)
os.dup2(LOG.fileno(), 2)

if not OPTIONS.gloo:
    import libdist.torch  # noqa: F401 - registers the name "gloo"

import torch
from torch.testing._internal import common_distributed


def skip_before_start():
    """Lets torch skip tests without their GPUs or ranks before it starts processes for them.

    torch's own decorators skip inside of the processes: two thirds of the tests would start them
    for nothing.
    """
    few, odd = OPTIONS.ranks < 8, OPTIONS.ranks % 2 == 1
    common_distributed.skip_if_small_worldsize = unittest.skipIf(few, "fewer than 8 ranks")
    common_distributed.skip_if_odd_worldsize = unittest.skipIf(odd, "an odd number of ranks")
    if not torch.accelerator.is_available():
        no_gpu = unittest.skip("no GPU")
        common_distributed.skip_if_no_gpu = no_gpu
        common_distributed.skip_if_lt_x_gpu = lambda _count, allow_cpu=False: (
            unittest.skipIf(not allow_cpu, "no GPU")
        )


skip_before_start()

from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.distributed import distributed_test

# These tests read what only the type GLOO of torch can give. The back end keeps the type CUSTOM,
# because torch's DDP takes a group of the type GLOO for an object of Gloo's class.
GLOO_ONLY = {"test_ddp_logging_data_cpu": "DDP's log has the name of the type, and Gloo's threads"}

# A test without an end must not take the time of the others.
MultiProcessTestCase.timeout = 120


class SuiteTest(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """All tests, each on its own processes."""

    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)


class Collector(unittest.TextTestResult):
    """Collects the outcome and the time of each test."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.outcomes = {}
        self.passed = []

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        seconds = time.monotonic() - self.began
        self.outcomes.setdefault(test._testMethodName, ["passed", seconds, ""])
        outcome = self.outcomes[test._testMethodName]
        outcome[1] = seconds
        print(f"{outcome[0]:8} {seconds:6.1f} s  {test._testMethodName}", file=TERMINAL)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.outcomes[test._testMethodName] = ["failed", 0, self._exc_info_to_string(error, test)]

    def addError(self, test, error):
        super().addError(test, error)
        self.outcomes[test._testMethodName] = ["failed", 0, self._exc_info_to_string(error, test)]

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcomes[test._testMethodName] = ["skipped", 0, reason]


def run(names):
    """Runs the tests, and returns their outcomes."""
    suite = unittest.TestSuite(SuiteTest(name) for name in names)
    result = unittest.TextTestRunner(
        stream=open(os.devnull, "w"), resultclass=Collector, verbosity=0
    ).run(suite)
    return result.outcomes


def gloo_passes(name):
    """Returns whether a test passes over Gloo."""
    command = [sys.executable, __file__, "--gloo", "--ranks", str(OPTIONS.ranks), "--only", name]
    report = os.path.join(FOLDER, "gloo.json")
    subprocess.run(
        [*command, "--report", report], check=False, stdout=subprocess.DEVNULL, timeout=300
    )
    with open(report) as file:
        return json.load(file)[name][0] == "passed"


def main():
    names = unittest.TestLoader().getTestCaseNames(SuiteTest)
    exact = [name for name in names if name == OPTIONS.only]
    names = exact or [name for name in names if OPTIONS.only in name]
    began = time.monotonic()
    outcomes, late = {}, []
    for name in names:
        if time.monotonic() - began > OPTIONS.minutes * 60:
            late.append(name)
        else:
            outcomes.update(run([name]))
    if OPTIONS.report:
        with open(OPTIONS.report, "w") as file:
            json.dump(outcomes, file)
    by_kind = {
        kind: [name for name, outcome in outcomes.items() if outcome[0] == kind]
        for kind in ("passed", "failed", "skipped")
    }
    worse = []
    if not OPTIONS.gloo:
        failed = [name for name in by_kind["failed"] if name not in GLOO_ONLY]
        worse = [name for name in failed if gloo_passes(name)]
    for name in worse:
        print(f"\n{name} fails, and passes over Gloo:\n{outcomes[name][2]}", file=TERMINAL)
    minutes = (time.monotonic() - began) / 60
    print(
        f"{OPTIONS.ranks} ranks: {len(by_kind['passed'])} passed, {len(worse)} failed, "
        f"{len(by_kind['failed']) - len(worse)} fail over Gloo too or need its type, "
        f"{len(by_kind['skipped'])} skipped, {len(late)} not run, {minutes:.1f} minutes",
        file=TERMINAL,
    )
    sys.exit(1 if worse or late or not by_kind["passed"] else 0)


if __name__ == "__main__":
    main()
