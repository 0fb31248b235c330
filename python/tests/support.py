"""Runs programs on several ranks, in real processes under distrun.

A test names a program in the folder `ranks`. The program runs on each rank, and fails with an
exception. Each run has a deadline, after which the test fails and its processes end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent.parent
LIMIT = 120


def distrun() -> str:
    """Returns the launcher of this Python environment, or the one on the search path."""
    own = Path(sys.executable).parent / "distrun"
    found = str(own) if own.is_file() else shutil.which("distrun")
    if found is None:
        raise unittest.SkipTest("distrun is not installed in this Python environment")
    return found


def run(command: list[str], *, limit: float = LIMIT,
        env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command with a deadline, in a process group that ends with it.

    A shell starts jobs in the background with Ctrl-C ignored, and children inherit this.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, **(env or {})}, start_new_session=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        text, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        raise AssertionError(f"{command} did not end within {limit} s:\n{text}") from None
    return subprocess.CompletedProcess(command, process.returncode, text)


class RankTest(unittest.TestCase):
    """A test whose body runs on several ranks."""

    def run_ranks(self, ranks: int, program: str, *arguments: str, limit: float = LIMIT,
                  env: dict[str, str] | None = None, status: int | None = 0,
                  options: tuple[str, ...] = ()) -> str:
        """Runs `ranks/PROGRAM.py`, checks the launcher's exit status, and returns the output."""
        path = str(TESTS / "ranks" / f"{program}.py")
        command = [distrun(), "--nproc-per-node", str(ranks), *options, sys.executable, path,
                   *arguments]
        done = run(command, limit=limit, env=env)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout
