"""Runs torchft's own tests over libdist, wherever they pass over Gloo on CPUs.

Each test has its own process, because torchft's servers use fixed ports and outlive a test.
"""

import sys
import unittest

from support import TESTS, run

MANAGER = "manager_integ_test.ManagerIntegTest"
LOCAL_SGD = "local_sgd_integ_test.LocalSGDIntegTest"
PROGRAMS = (
    "process_groups",
    "process_group_test.ProcessGroupTest.test_gloo_apis_0_cpu",
    "process_group_test.ProcessGroupTest.test_functional_collectives",
    "ddp_test.TestDDP",
    "lighthouse_test.TestLighthouse",
    "parameter_server_test.TestParameterServer",
    "checkpointing.pg_transport_test.PGTransportTest.test_pg_transport_gloo",
    f"{MANAGER}.test_ddp_healthy",
    f"{MANAGER}.test_ddp_recovery_0_async_quorum",
    f"{MANAGER}.test_ddp_recovery_1_sync_quorum",
    f"{MANAGER}.test_ddp_recovery_multi_rank",
    f"{MANAGER}.test_quorum_timeout",
    f"{MANAGER}.test_manager_allreduce_1",
    f"{LOCAL_SGD}.test_local_sgd_recovery_0",
    f"{LOCAL_SGD}.test_streaming_diloco_upscale_01",
    f"{LOCAL_SGD}.test_streaming_diloco_commit_failure_01",
)
LIMIT_S = 180


class TorchftTest(unittest.TestCase):
    def test_programs_of_torchft(self):
        program = str(TESTS / "ranks" / "torchft_test.py")
        for name in PROGRAMS:
            with self.subTest(name):
                done = run([sys.executable, program, name], limit=LIMIT_S)
                self.assertEqual(done.returncode, 0, done.stdout[-6000:])
                print(name, flush=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
