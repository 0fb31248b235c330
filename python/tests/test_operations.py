"""Collectives, messages, works and training on several ranks."""

import unittest

from support import RankTest


class OperationTest(RankTest):
    def test_collectives_on_one_rank(self):
        self.run_ranks(1, "collectives")

    def test_collectives_on_three_ranks(self):
        self.run_ranks(3, "collectives")

    def test_collectives_over_tcp(self):
        self.run_ranks(2, "collectives", env={"DIST_TRANSPORT": "tcp"})

    def test_messages_objects_and_groups(self):
        self.run_ranks(4, "messages")

    def test_works_and_asyncio(self):
        self.run_ranks(2, "works")

    def test_training_on_one_rank(self):
        self.run_ranks(1, "training")

    def test_training_on_three_ranks(self):
        self.run_ranks(3, "training")


if __name__ == "__main__":
    unittest.main()
