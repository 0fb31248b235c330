"""Lets torch meet in jobs whose store has a secret."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

import torch_ranks

from libdist.torch import _rendezvous

PROGRAM = str(Path(__file__).parent / "ranks" / "torch_secret.py")
LIMIT_S = 120


def distrun():
    """Returns the launcher: LIBDIST_DISTRUN, or the one of this Python environment."""
    return os.environ.get("LIBDIST_DISTRUN") or str(Path(sys.executable).parent / "distrun")


class Secret(unittest.TestCase):
    """Jobs with a secret."""

    def secret_file(self, text=b"of this job\n", mode=0o600):
        """Returns the path of a file with a secret."""
        path = Path(torch_ranks.temporary_folder("secret")) / "secret"
        path.write_bytes(text)
        path.chmod(mode)
        return str(path)

    def test_ranks_meet_in_the_store_of_distrun(self):
        for backend in ("libdist", "gloo"):
            command = [distrun(), "--nproc-per-node", "2", sys.executable, PROGRAM, backend]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("done"), 2)

    def test_rank_0_serves_a_store_with_a_secret(self):
        common = {
            **os.environ,
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(torch_ranks.free_port()),
            "DIST_STORE_SECRET_FILE": self.secret_file(),
        }
        command = [sys.executable, PROGRAM, "libdist"]
        ranks = [
            subprocess.Popen(
                command, env={**common, "RANK": rank}, stdout=subprocess.PIPE, text=True
            )
            for rank in ("0", "1")
        ]
        try:
            outputs = [process.communicate(timeout=LIMIT_S)[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        self.assertEqual([process.returncode for process in ranks], [0, 0], outputs)

    def test_secret_is_read_as_the_library_reads_it(self):
        def secret_in(**options):
            os.environ["DIST_STORE_SECRET_FILE"] = self.secret_file(**options)
            try:
                return _rendezvous.job_secret()
            finally:
                del os.environ["DIST_STORE_SECRET_FILE"]

        self.assertIsNone(_rendezvous.job_secret())
        self.assertEqual(secret_in(), b"of this job")
        self.assertEqual(secret_in(text=b"a\n\n"), b"a\n")
        for wrong in ({"mode": 0o640}, {"text": b"\n"}, {"text": b"x" * 4097}):
            with self.assertRaises(ValueError):
                secret_in(**wrong)


if __name__ == "__main__":
    unittest.main(verbosity=2)
