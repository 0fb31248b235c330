"""Runs torchft's own tests of process groups with a process group of libdist in place of Gloo's.

torchft's wheel contains these tests. They simulate replicas by threads, let replicas fail, and
compare the weights of the replicas at the end.
"""

import sys
import unittest
from datetime import timedelta

import torchft
from torchft import (
    ddp_test,
    lighthouse_test,
    local_sgd_integ_test,
    manager_integ_test,
    parameter_server_test,
    process_group,
    process_group_test,
)
from torchft.checkpointing import pg_transport_test

from libdist.errors import Error
from libdist.torchft import ProcessGroupLibdist

MODULES = (
    ddp_test, lighthouse_test, local_sgd_integ_test, manager_integ_test, parameter_server_test,
    pg_transport_test, process_group_test,
)
