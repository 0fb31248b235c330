"""Runs every block of Python in README, docs/tutorial.md, docs/install.md and docs/python.md. Also
runs the blocks of docs/integrations.md that need only LightGBM.

`blocks.py` describes the comments before the blocks.
"""

import re
import subprocess
import unittest
from pathlib import Path

import libdist
from blocks import blocks, check_block
from support import REPOSITORY, distrun

PAGE = REPOSITORY / "docs" / "python.md"
INSTALL = REPOSITORY / "docs" / "install.md"
FIRST_PAGES = (REPOSITORY / "README.md", REPOSITORY / "docs" / "tutorial.md")
INTEGRATIONS = REPOSITORY / "docs" / "integrations.md"
GATE = REPOSITORY / "xtask" / "src" / "test" / "python.rs"


@unittest.skipUnless(PAGE.is_file(), "this test needs the repository")
class DocumentTest(unittest.TestCase):
    def test_every_block_of_python_runs(self):
        found = blocks(PAGE, "python")
        self.assertGreater(len(found), 8)
        for number, (how, code) in enumerate(found):
            with self.subTest(block=number, how=how):
                check_block(self, how, code)

    def test_programs_for_beginners_run(self):
        for page in FIRST_PAGES:
            found = blocks(page, "python")
            self.assertGreater(len(found), 0)
            for number, (how, code) in enumerate(found):
                with self.subTest(page=page.name, block=number, how=how):
                    check_block(self, how, code)

    def test_program_without_the_package_runs(self):
        [(how, code)] = blocks(INSTALL, "python")
        folder = Path(libdist.__file__).parent / "lib"
        self.assertTrue((folder / "libdist.so.0").is_file(), folder)
        check_block(self, {**how, "env": f"LD_LIBRARY_PATH={folder}"}, code)

    def test_every_block_with_lightgbm_runs(self):
        found = [it for it in blocks(INTEGRATIONS, "python") if it[0].get("with") == "lightgbm"]
        self.assertGreater(len(found), 1)
        for number, (how, code) in enumerate(found):
            with self.subTest(block=number, how=how):
                check_block(self, how, code)

    def test_every_command_runs_in_the_gate(self):
        commands = [line for _, code in blocks(PAGE, "sh") for line in code.splitlines()]
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

    def test_dist_bench_measures_the_library_of_the_package(self):
        program = str(Path(distrun()).parent / "dist-bench")
        cell = ["--ops", "all_reduce", "--sizes", "4", "--ranks", "2", "--pairs", "1"]
        done = subprocess.run([program, *cell], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("all_reduce, 2 ranks", done.stdout)


if __name__ == "__main__":
    unittest.main()
