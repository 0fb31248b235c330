"""Runs every block of docs/python-torch.md.

A comment before a block of Python says how it runs: `ranks: N`, `options: ...` for distrun (torchrun
starts a block without options), `prints: TEXT`, and `fails: N` for a launcher that reports N failed
ranks. Blocks of commands are compared with the commands that other tests run.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "python-torch.md"
BLOCK = re.compile(r"(?:^<!-- (.*?) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_S = 120


def settings(text):
    """Returns the settings of a comment, for example {"ranks": "2", "prints": "done"}."""
    parts = re.split(r", (?=ranks|options|prints|fails)", text or "")
    return dict(part.partition(": ")[::2] for part in parts if part)


def distrun():
    """Returns the launcher: LIBDIST_DISTRUN, or the one of this Python environment."""
    return os.environ.get("LIBDIST_DISTRUN") or str(Path(sys.executable).parent / "distrun")


def launched(how, program):
    """Returns the command that runs a program as a block says."""
    ranks = ["--nproc-per-node", how["ranks"]]
    if "options" in how:
        return [distrun(), *ranks, *how["options"].split(), sys.executable, program]
    return [sys.executable, "-m", "torch.distributed.run", *ranks, program]


class Documents(unittest.TestCase):
    """The blocks of the page."""

    def run_command(self, command, folder):
        """Runs a command in a folder, and returns its status and output."""
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
        return done.returncode, done.stdout

    def test_every_block_of_python_runs(self):
        blocks = [
            (how, code) for how, kind, code in BLOCK.findall(PAGE.read_text()) if kind == "python"
        ]
        self.assertGreater(len(blocks), 4)
        for number, (comment, code) in enumerate(blocks):
            how = settings(comment)
            with self.subTest(block=number), tempfile.TemporaryDirectory() as folder:
                program = Path(folder) / "block.py"
                program.write_text(code)
                status, output = self.run_command(launched(how, str(program)), folder)
                self.assertEqual(status, 0, output)
                if "fails" in how:
                    self.assertIn(f"without {how['fails']} of", output)
                self.assertIn(how.get("prints", ""), output)

    def test_every_command_runs(self):
        commands = [
            line
            for _, kind, code in BLOCK.findall(PAGE.read_text())
            if kind == "sh"
            for line in code.splitlines()
        ]
        train = BLOCK.search(PAGE.read_text()).group(3)
        for command in commands:
            words = command.split()
            with self.subTest(command=command), tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "train.py").write_text(train)
                if words[:1] == ["distrun"]:
                    words[0] = distrun()
                    words[words.index("python")] = sys.executable
                elif words[:1] == ["torchrun"]:
                    words[:1] = [sys.executable, "-m", "torch.distributed.run"]
                else:
                    self.assertEqual(words, ["python", "-m", "libdist.torch", "build"])
                    words[0] = sys.executable
                status, output = self.run_command(words, folder)
                self.assertEqual(status, 0, output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
