"""Runs every block of docs/python.md.

A comment before a block of Python says how it runs: `ranks: N`, `options: ...` for distrun, `alone`
for a run without distrun, `prints: TEXT`, and `fails: N` for a launcher that reports N failed ranks.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import REPOSITORY, distrun, run

PAGE = REPOSITORY / "docs" / "python.md"
GATE = REPOSITORY / "xtask" / "src" / "test" / "python.rs"
BLOCK = re.compile(r"(?:^<!-- (.*?) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def settings(text):
    """Returns the settings of a comment, for example {"ranks": "2", "alone": ""}."""
    parts = re.split(r", (?=ranks|options|alone|prints|fails)", text or "")
    return dict(part.partition(": ")[::2] for part in parts if part)


@unittest.skipUnless(PAGE.is_file(), "this test needs the repository")
class DocumentTest(unittest.TestCase):
    def test_every_block_of_python_runs(self):
        blocks = [(how, code) for how, kind, code in BLOCK.findall(PAGE.read_text())
                  if kind == "python"]
        self.assertGreater(len(blocks), 8)
        for number, (how, code) in enumerate(blocks):
            with self.subTest(block=number, how=how), tempfile.TemporaryDirectory() as folder:
                self.check_block(settings(how), code, folder)

    def check_block(self, how, code, folder):
        self.assertTrue("ranks" in how or "alone" in how, "the comment does not say how it runs")
        program = Path(folder) / "block.py"
        program.write_text(code)
        command = [sys.executable, str(program)]
        if "alone" not in how:
            options = how.get("options", "").split()
            command = [distrun(), "--nproc-per-node", how["ranks"], *options, *command]
        previous = os.getcwd()
        os.chdir(folder)
        try:
            done = run(command, env={"PYTHONUNBUFFERED": "1"})
        finally:
            os.chdir(previous)
        if "fails" not in how:
            self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(how.get("prints", ""), done.stdout)
        if "max-restarts" not in how.get("options", ""):
            self.assertNotIn("Traceback", done.stdout)

    def test_every_command_runs_in_the_gate(self):
        commands = [line for _, kind, code in BLOCK.findall(PAGE.read_text()) if kind == "sh"
                    for line in code.splitlines()]
        # The gate installs the package with the first command, and runs the second one.
        self.assertEqual(len(commands), 2)
        gate = re.sub(r"\\\n *", "", GATE.read_text().replace('\\"', '"'))
        self.assertIn("./python", gate)
        self.assertTrue(commands[0].startswith("pip install ./python"))
        self.assertIn(commands[1], gate)

    def test_programs_of_the_package_start(self):
        for name in ("distrun", "dist-doctor", "dist-store", "dist-bench"):
            program = str(Path(distrun()).parent / name)
            done = subprocess.run([program, "--help"], capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 0, name)


if __name__ == "__main__":
    unittest.main()
