"""The back end "libdist" of torch.distributed.

`torch.distributed.init_process_group("libdist")` finds it by the entry point of the package.
Programs for a torch that does not look for entry points import this module first. With
LIBDIST_AS_GLOO=1 the back end answers to the name "gloo" too.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from . import _rendezvous
from ._backend import Settings, create
from ._shrink import backend_of, failure, shrink, typed_errors

__all__ = ["Settings", "backend_of", "failure", "register", "shrink", "typed_errors"]


def register() -> None:
    """Registers the back end under its names. Later calls do nothing."""
    _rendezvous.install()
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    names = ["libdist"]
    if os.environ.get("LIBDIST_AS_GLOO") == "1":
        names.append("gloo")
    plugins = getattr(dist.Backend, "_plugins", {})
    for name in names:
        known = plugins.get(name.upper())
        if known is None or known.creator_fn is not create:
            dist.Backend.register_backend(name, create, extended_api=True, devices=devices)


register()
