"""Runs Accelerate's own test scripts over libdist, wherever they pass over Gloo on CPUs."""

import sys
import tempfile
import unittest

from support import TESTS, run

# The scripts, and the numbers of ranks on which they pass over Gloo.
SCRIPTS = (("test_script", (2,)), ("test_sync", (2, 3)), ("test_ops", (2, 3)))
LIMIT_S = 300


class AccelerateTest(unittest.TestCase):
    def test_scripts_of_accelerate(self):
        program = str(TESTS / "ranks" / "accelerate_script.py")
        environment = {
            "LIBDIST_AS_GLOO": "1",
            "ACCELERATE_USE_CPU": "true",
            "HF_HUB_OFFLINE": "1",
            # torchrun leaves its files behind.
            "TMPDIR": self.enterContext(tempfile.TemporaryDirectory()),
        }
        for script, sizes in SCRIPTS:
            for ranks in sizes:
                with self.subTest(script=script, ranks=ranks):
                    done = run(
                        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node",
                         str(ranks), program, script], limit=LIMIT_S, env=environment)
                    self.assertEqual(done.returncode, 0, done.stdout)
                    self.assertEqual(done.stdout.count(f"{script} has used libdist"), ranks, done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
