"""Starts trainings of LightGBM, over libdist and over LightGBM's sockets, in C and in Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lightgbm.libpath

import libdist
from libdist._library import library_path
from support import REPOSITORY, TESTS, distrun, run

EXAMPLE = REPOSITORY / "c-examples" / "lightgbm"
RESULT = re.compile(r"model (\w+), \d+ rounds in ([\d.]+) s over (libdist|sockets)")


class Training:
    """The result of a training."""

    def __init__(self, output: str) -> None:
        found = RESULT.search(output)
        assert found, output
        self.model = found[1]
        self.seconds = float(found[2])
        self.network = found[3]


def train(command: list[str], ranks: int) -> Training:
    """Runs a training on a number of ranks."""
    done = run([distrun(), "--nproc-per-node", str(ranks), *command])
    assert done.returncode == 0, done.stdout
    return Training(done.stdout)


def python_program(network: str, *sizes: int) -> list[str]:
    """Returns the command of the program in Python; `sizes` are rows, features, leaves, rounds."""
    program = str(TESTS / "ranks" / "lightgbm_model.py")
    return [sys.executable, program, network, *map(str, sizes)]


def c_program(program: Path, network: str, *sizes: int) -> list[str]:
    """Returns the command of the example in C."""
    words = [str(program)]
    for name, size in zip(("--rows", "--features", "--leaves", "--rounds"), sizes):
        words += [name, str(size)]
    return words + (["--sockets"] if network == "sockets" else [])


def compile_example(folder: Path) -> Path:
    """Compiles the example in C with the library of this package and that of LightGBM."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")))
    header = Path(libdist.__file__).parent / "include"
    if not header.is_dir():
        header = REPOSITORY / "include"
    libraries = [Path(library_path()), Path(lightgbm.libpath._LIB._name)]
    program = folder / "train_lightgbm"
    subprocess.run(
        [*compiler.split(), "-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
         f"-I{header}", *map(str, sorted(EXAMPLE.glob("*.c"))), "-o", str(program),
         *map(str, libraries), *(f"-Wl,-rpath,{it.parent}" for it in libraries)],
        check=True, timeout=120)
    return program
