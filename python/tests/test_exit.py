"""The end of the interpreter, with and without pending operations."""

import time
import unittest

from support import RankTest


class ExitTest(RankTest):
    def check(self, case: str, status: int = 0, seconds: float = 20.0) -> str:
        begin = time.monotonic()
        # Python 3.12 and newer warn of every fork of a process with threads.
        quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}
        text = self.run_ranks(2, "exits", case, status=status, limit=60, env=quiet)
        self.assertLess(time.monotonic() - begin, seconds, text)
        self.assertNotIn("Fatal Python error", text)
        return text

    def test_plain_end_without_finalize(self):
        for _ in range(5):
            self.assertEqual(self.check("plain"), "")

    def test_pending_work(self):
        self.check("pending work")

    def test_pending_await(self):
        self.check("pending await")

    def test_pending_callback(self):
        self.check("pending then")

    def test_forked_child(self):
        self.assertEqual(self.check("fork"), "")

    def test_forked_workers_of_a_pool(self):
        self.assertEqual(self.check("workers"), "")

    def test_exit_status_is_kept(self):
        self.check("status", status=3)

    def test_exception_is_seen_by_the_peers_at_once(self):
        text = self.check("exception", status=1)
        self.assertIn("ValueError: rank 0 fails", text)

    def test_arena_memory(self):
        self.assertEqual(self.check("arena"), "")


if __name__ == "__main__":
    unittest.main()
