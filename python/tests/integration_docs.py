"""Runs the blocks of docs/integrations.md; `blocks.py` describes the comments before them."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from blocks import blocks, check_block
from support import REPOSITORY

PAGE = REPOSITORY / "docs" / "integrations.md"
PACKAGES = {"lightgbm", "ray", "torchft", "accelerate"}


class DocumentTest(unittest.TestCase):
    def test_every_block_of_python_runs(self):
        found = blocks(PAGE, "python")
        self.assertEqual({how.get("with") for how, _ in found}, PACKAGES)
        for number, (how, code) in enumerate(found):
            with self.subTest(block=number, how=how):
                check_block(self, how, code)

    def test_every_command_runs(self):
        # Every command starts train.py, the block of Python before it.
        (command,) = [line for _, code in blocks(PAGE, "sh") for line in code.splitlines()]
        self.assertIn("torchrun", command)
        (code,) = [code for how, code in blocks(PAGE, "python") if how["with"] == "accelerate"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "train.py").write_text(code)
            done = subprocess.run(["sh", "-c", command], cwd=folder, text=True, timeout=120,
                                  env={**os.environ, "PATH": path}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("trained", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
