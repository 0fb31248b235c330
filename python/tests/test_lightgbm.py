"""LightGBM over libdist gives the model that it gives over its own sockets."""

import tempfile
import unittest
from pathlib import Path

from lightgbm_programs import c_program, compile_example, python_program, train
from support import REPOSITORY, RankTest

NETWORKS = ("libdist", "sockets")


class LightgbmTest(RankTest):
    def check_models(self, command, *, ranks):
        """Trains over both networks; each program compares the models of its ranks."""
        ours, theirs = (train(command(network), ranks) for network in NETWORKS)
        self.assertEqual((ours.network, theirs.network), NETWORKS)
        self.assertEqual(ours.model, theirs.model)

    def test_python_model_equals_that_of_sockets(self):
        self.check_models(python_program, ranks=2)

    @unittest.skipUnless(REPOSITORY.joinpath("c-examples").is_dir(), "this test needs the repository")
    def test_example_in_c_gives_the_model_of_sockets(self):
        with tempfile.TemporaryDirectory() as folder:
            program = compile_example(Path(folder))
            self.check_models(lambda network: c_program(program, network, 600, 30, 15, 8), ranks=2)

    def test_three_ranks_have_one_model(self):
        train(python_program("libdist"), 3)

    def test_data_of_another_rank_changes_the_model(self):
        models = {train(python_program("libdist", 600, 30, 15, 8), ranks).model for ranks in (1, 2)}
        self.assertEqual(len(models), 2)

    def test_edges(self):
        self.run_ranks(2, "lightgbm_edges")


if __name__ == "__main__":
    unittest.main()
