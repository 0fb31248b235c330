"""The C++ subclass: the compiled module, and the owner of a group behind it."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from torch._C import _distributed_c10d as c10d

from . import _build, _lifecycle
from ._group import NativeGroup, end_functions


def load() -> Any:
    """Returns the compiled module, or None.

    LIBDIST_TORCH_SUBCLASS chooses the subclass: "python", "cxx", or by default the one in C++ if
    it has been built for this torch.
    """
    wanted = os.environ.get("LIBDIST_TORCH_SUBCLASS", "")
    if wanted not in ("", "python", "cxx"):
        raise ValueError(f"LIBDIST_TORCH_SUBCLASS is python or cxx, not {wanted!r}")
    if wanted == "python":
        return None
    name = f"{__package__}.{_build.MODULE}"
    if name in sys.modules:
        return sys.modules[name]
    path = _build.built_path()
    if not path.exists():
        if wanted == "cxx":
            raise ImportError(
                "libdist: the C++ subclass is not built for this torch; run "
                "`python -m libdist.torch build`"
            )
        return None
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    end_functions.append(module.close)
    return module


class Owner(_lifecycle.Lifecycle):
    """Owns the group of a back end in C++, and makes its exceptions and other groups."""

    def backend_over(self, group: NativeGroup, store, name: str):
        """Makes the back end of another group."""
        return create(group, self.settings, store, name)

    def error(self, status, message, operation, work):
        """Makes the exception of a failed call or work."""
        return self.group.error(status, message, operation, work)

    def reconfigure(self, opts):
        """Replaces the group, and returns the handle of the new one."""
        self.meet_again(opts)
        return self.group.handle.value


def create(group: NativeGroup, settings, store, name: str):
    """Makes a back end in C++."""
    module = load()
    owner = Owner(group, settings, store, name)
    return module.create(
        group.handle.value,
        owner,
        _lifecycle.display_name(),
        settings.canonical,
        bool(settings.interruptible),
    )


def owner_of(backend: c10d.Backend):
    """Returns the owner of a back end in C++, or None."""
    module = load()
    return None if module is None else module.owner_of(backend)
