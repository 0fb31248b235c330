"""Builds the library and the programs of libdist for the wheel.

The hook runs cargo in the repository, or takes the files of the folder LIBDIST_PREBUILT. It strips
copies of the files, and names the wheel by the glibc that they need. LIBDIST_TARGET is a target of
cargo-zigbuild, such as x86_64-unknown-linux-gnu.2.28, and LIBDIST_LICENSES is a file with the
licences of the packages of Rust in the binaries; `cargo xtask wheel` sets both.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from elf_needs import needed_glibc  # noqa: E402

# The file contains distrun, dist-store, dist-doctor and dist-bench.
PROGRAMS = ("dist-programs",)
SONAME = "libdist.so.0"
RUST = "1.89"


class LibraryBuildHook(BuildHookInterface):
    """Adds the library and the programs to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if sys.platform != "linux":
            fail(f"libdist runs on Linux only, and this is {sys.platform}")
        built = prebuilt_folder() or cargo_build(Path(self.root).parent)
        stage = Path(self.root) / "build" / "stage"
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir(parents=True)
        library = stripped_copy(find_library(built), stage / SONAME)
        programs = [stripped_copy(built / name, stage / name) for name in PROGRAMS]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag([library, *programs])}"
        files = {library: f"libdist/lib/{SONAME}"}
        files.update({it: f"libdist/bin/{it.name}" for it in programs})
        if licenses := os.environ.get("LIBDIST_LICENSES"):
            files[Path(licenses)] = "libdist/THIRD-PARTY-LICENSES.txt"
        for source, place in files.items():
            if version == "editable":
                target = Path(self.root) / "src" / place
                target.parent.mkdir(exist_ok=True)
                replace(source, target)
            else:
                build_data["force_include"][str(source)] = place


def replace(source: Path, target: Path) -> None:
    """Copies a file in place of another one, which may be in use."""
    new = target.with_suffix(".new")
    shutil.copy2(source, new)
    new.replace(target)


def fail(problem: str) -> None:
    """Ends the build with a message, without a traceback."""
    raise SystemExit(f"\nlibdist: {problem}\n")


def prebuilt_folder() -> Path | None:
    """Returns the folder LIBDIST_PREBUILT, if the variable is set."""
    chosen = os.environ.get("LIBDIST_PREBUILT")
    if not chosen:
        return None
    folder = Path(chosen).resolve()
    missing = [name for name in PROGRAMS if not (folder / name).is_file()]
    if missing:
        fail(f"LIBDIST_PREBUILT={folder} lacks {', '.join(missing)}")
    return folder


def find_library(folder: Path) -> Path:
    for name in (SONAME, "libdist.so"):
        if (folder / name).is_file():
            return folder / name
    fail(f"{folder} has neither {SONAME} nor libdist.so")
    raise AssertionError


def cargo_build(repository: Path) -> Path:
    """Builds with cargo, and returns the folder of the result."""
    if not (repository / "include" / "dist.h").is_file():
        fail(
            "the source of the library is not here: run `pip install ./python` in a clone of the "
            "repository, or set LIBDIST_PREBUILT to a folder with libdist.so.0 and the programs"
        )
    cargo = find_cargo()
    check_compiler()
    target = os.environ.get("LIBDIST_TARGET")
    command = [cargo, "zigbuild" if target else "build", "--release", "--locked"]
    command += ["--package", "dist", "--package", "dist-tools", "--package", "dist-programs"]
    command += ["--lib"]
    command += [word for name in PROGRAMS for word in ("--bin", name)]
    command += ["--target", target] if target else []
    print("libdist:", " ".join(command), file=sys.stderr, flush=True)
    # pip shows this output if the build fails.
    if subprocess.run(command, cwd=repository, stdout=sys.stderr).returncode:
        fail(f"cargo failed; its messages are above. The build needs Rust {RUST} or newer")
    query = [cargo, "metadata", "--no-deps", "--format-version", "1"]
    metadata = subprocess.run(query, cwd=repository, stdout=subprocess.PIPE, check=True)
    folder = Path(json.loads(metadata.stdout)["target_directory"])
    if target:
        # The version of glibc is no part of the folder's name.
        folder /= target.split(".")[0]
    return folder / "release"


def find_cargo() -> str:
    home = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    # rustup puts cargo where a non-interactive shell does not look.
    found = shutil.which("cargo") or shutil.which("cargo", path=str(Path(home) / "bin"))
    if found is None:
        fail(
            f"cargo was not found. libdist is built with Rust {RUST} or newer: install it from "
            "https://rustup.rs, or put cargo on PATH, or set LIBDIST_PREBUILT to a folder with a "
            "built library"
        )
    assert found is not None
    return found


def check_compiler() -> None:
    """Fails early without a C compiler, which Rust needs for linking."""
    if os.environ.get("LIBDIST_TARGET") or any(
        name.endswith("_LINKER") and name.startswith("CARGO_TARGET_") for name in os.environ
    ):
        return
    if shutil.which("cc") is None:
        fail(
            "no C compiler (cc) was found, which Rust needs for linking: install gcc or clang "
            "(Debian, Ubuntu: apt-get install gcc libc6-dev)"
        )


def stripped_copy(source: Path, target: Path) -> Path:
    """Copies a file without its symbols for debuggers."""
    if not source.is_file():
        fail(f"{source} is missing")
    shutil.copyfile(source, target)
    target.chmod(0o755)
    strip = shutil.which("strip") or shutil.which("llvm-strip")
    if strip is None:
        print("libdist: strip was not found; the package will be large", file=sys.stderr)
    elif subprocess.run([strip, str(target)]).returncode:
        fail(f"{strip} cannot strip {target}")
    return target


def platform_tag(files: list[Path]) -> str:
    """Returns the platform of the wheel, from the glibc that its files need."""
    machine = platform.machine()
    needed = [needed_glibc(str(it)) for it in files]
    # The target x86_64-unknown-linux-gnu.2.28 promises this version.
    promised = re.search(r"\.(\d+)\.(\d+)$", os.environ.get("LIBDIST_TARGET", ""))
    if promised:
        needed.append((int(promised[1]), int(promised[2])))
    major, minor = max(needed)
    if platform.libc_ver()[0] != "glibc" or (major, minor) < (2, 17):
        return f"linux_{machine}"
    return f"manylinux_{major}_{minor}_{machine}"
