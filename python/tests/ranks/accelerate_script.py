"""Runs a test script of Accelerate, and checks that its groups are groups of libdist.

    torchrun ... accelerate_script.py NAME
"""

import importlib
import sys

import torch
import torch.distributed

import libdist.torch
from libdist._library import lib

name = sys.argv.pop()
create = torch.distributed.init_process_group
created = []


def create_and_note(*arguments, **options):
    """Creates the default group, and notes the group of the library."""
    create(*arguments, **options)
    created.append(libdist.torch.backend_of().native_group())


torch.distributed.init_process_group = create_and_note
importlib.import_module(f"accelerate.test_utils.scripts.{name}").main()
assert len(created) == 1, created
group = created[0]
if group.handle is not None:
    assert lib.dist_group_sequence(group.handle) > 0, "no collective has used libdist"
print(f"{name} has used libdist")
