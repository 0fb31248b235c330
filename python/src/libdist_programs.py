"""The commands of the package: each replaces this process with a program.

This module finds the folder of `libdist` without importing it, so that the commands start fast.
"""

import importlib.util
import os
import sys

# The file that contains all programs; it runs the program of its name.
_BUNDLE = "dist-programs"


def _run(name: str, file: str) -> None:
    package = importlib.util.find_spec("libdist")
    if package is None or not package.submodule_search_locations:
        raise SystemExit(f"{name}: the package libdist is not installed")
    path = os.path.join(package.submodule_search_locations[0], "bin", file)
    try:
        os.execv(path, [name, *sys.argv[1:]])
    except OSError as cause:
        print(f"{name}: cannot run {path}: {cause.strerror}; install libdist again",
              file=sys.stderr)
        raise SystemExit(127) from None


def distrun() -> None:
    _run("distrun", _BUNDLE)


def dist_store() -> None:
    _run("dist-store", _BUNDLE)


def dist_doctor() -> None:
    _run("dist-doctor", _BUNDLE)


def dist_bench() -> None:
    _run("dist-bench", _BUNDLE)
