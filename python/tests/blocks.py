"""The code blocks of a document, and how they run.

A comment before a block of Python says how it runs: `ranks: N` with `options: ...` for distrun,
`torchrun: N` for N ranks of torchrun, `alone` without a launcher; `env: NAME=VALUE`; `prints: TEXT`;
`fails: N` for a launcher that reports N failed ranks; `with: PACKAGE` for the package that it needs.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from support import distrun, run

BLOCK = re.compile(r"(?:^<!-- (.*?) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KEYS = ("ranks", "torchrun", "options", "alone", "prints", "fails", "with", "env")


def settings(text: str) -> dict[str, str]:
    """Returns the settings of a comment, for example {"ranks": "2", "prints": "done"}."""
    parts = re.split(rf", (?={'|'.join(KEYS)})", text or "")
    return dict(part.partition(": ")[::2] for part in parts if part)


def blocks(page: Path, kind: str) -> list[tuple[dict[str, str], str]]:
    """Returns the settings and the code of all blocks of one language."""
    return [(settings(how), code) for how, language, code in BLOCK.findall(page.read_text())
            if language == kind]


def variables(how: dict[str, str]) -> dict[str, str]:
    """Returns the environment variables that a block needs."""
    return dict(it.split("=", 1) for it in how.get("env", "").split())


def launched(how: dict[str, str], program: str) -> list[str]:
    """Returns the command that runs a program as a block says."""
    command = [sys.executable, program]
    if "ranks" in how:
        return [distrun(), "--nproc-per-node", how["ranks"], *how.get("options", "").split(), *command]
    if "torchrun" in how:
        return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", how["torchrun"],
                program]
    return command


def check_block(test, how: dict[str, str], code: str) -> None:
    """Runs a block of Python in an empty folder, and checks its end and its output."""
    test.assertTrue({"ranks", "torchrun", "alone"} & how.keys(), "no comment says how it runs")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "block.py"
        program.write_text(code)
        previous = os.getcwd()
        os.chdir(folder)
        try:
            done = run(launched(how, str(program)),
                       env={"PYTHONUNBUFFERED": "1", "TMPDIR": folder, "RAY_TMPDIR": folder,
                            **variables(how)})
        finally:
            os.chdir(previous)
    if "fails" in how:
        test.assertIn(f"without {how['fails']} of", done.stdout)
    else:
        test.assertEqual(done.returncode, 0, done.stdout)
    test.assertIn(how.get("prints", ""), done.stdout)
    if "max-restarts" not in how.get("options", ""):
        test.assertNotIn("Traceback", done.stdout)
