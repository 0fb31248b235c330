"""Failures of ranks, wrong calls, and interrupted calls."""

import signal
import unittest

from support import RankTest

CONTINUE = ("--on-failure=continue", "--min-ranks=1")


class FailureTest(RankTest):
    def test_killed_rank_is_named_and_the_others_continue(self):
        text = self.run_ranks(3, "failures", "kill", options=CONTINUE, status=None)
        self.assertEqual(text.count("detected after"), 2, text)
        self.assertNotIn("Traceback", text)
        self.assertIn(f"signal {int(signal.SIGKILL)}", text)

    def test_different_calls_are_a_mismatch(self):
        self.run_ranks(2, "failures", "mismatch")

    def test_receives_from_each_other_are_a_deadlock(self):
        self.run_ranks(2, "failures", "deadlock")

    def test_late_rank_is_named_by_the_timeout(self):
        self.run_ranks(2, "failures", "timeout")

    def test_abort_ends_the_calls_of_all_ranks(self):
        self.run_ranks(2, "failures", "abort")

    def test_failed_messages_leave_the_group_usable(self):
        self.run_ranks(2, "failures", "messages")

    def test_wrong_arguments_have_no_effect(self):
        self.run_ranks(2, "failures", "usage")


class InterruptTest(RankTest):
    def test_interrupted_collective_leaves_the_group_usable(self):
        self.run_ranks(2, "interrupt", "collective")

    def test_interrupted_receive_continues(self):
        self.run_ranks(2, "interrupt", "receive")

    def test_interruption_reports_a_failed_group(self):
        self.run_ranks(2, "interrupt", "failed")

    def test_calls_without_a_work_are_interrupted(self):
        self.run_ranks(2, "interrupt", "helper")

    def test_interrupted_init_leaves_no_world(self):
        self.run_ranks(2, "interrupt", "init")

    def test_exception_of_another_handler_comes_through(self):
        self.run_ranks(2, "interrupt", "own handler")


if __name__ == "__main__":
    unittest.main()
