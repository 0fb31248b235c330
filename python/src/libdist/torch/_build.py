"""Compiles the C++ subclass against the installed torch."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch

from .._library import lib, library_path

MODULE = "_c10d"
_FOLDER = Path(__file__).parent
_SOURCE = _FOLDER / "_c10d.cpp"
_HEADERS = sorted(_FOLDER.glob("_c10d_*.hpp"))
_LIMIT_S = 900


def header_folder() -> Path:
    """Returns the folder of dist.h: in the package, or in the repository."""
    package = Path(__file__).parents[1] / "include"
    repository = Path(__file__).parents[4] / "include"
    for folder in (package, repository):
        if (folder / "dist.h").is_file():
            return folder
    raise FileNotFoundError(f"dist.h is neither in {package} nor in {repository}")


def cache_folder() -> Path:
    """Returns the folder of compiled modules: LIBDIST_TORCH_CACHE, or one in the user's cache."""
    chosen = os.environ.get("LIBDIST_TORCH_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "libdist" / "torch"


def built_path() -> Path:
    """Returns the path of the module for this torch, this Python and this source."""
    source = hashlib.sha256()
    for file in (_SOURCE, *_HEADERS):
        source.update(file.read_bytes())
    source.update(lib.dist_version_string())
    source.update(library_path().encode())
    key = f"torch-{torch.__version__}-{source.hexdigest()[:12]}"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return cache_folder() / key / f"{MODULE}{suffix}"


def command(target: Path) -> list[str]:
    """Returns the compiler's command line."""
    from torch.utils.cpp_extension import include_paths

    library = Path(library_path()).resolve()
    torch_folder = Path(torch.__file__).parent / "lib"
    standard = "c++20" if _version() >= (2, 12) else "c++17"
    return [
        *shlex.split(os.environ.get("CXX", "c++")),
        "-shared",
        "-fPIC",
        "-O2",
        f"-std={standard}",
        "-w",
        f"-DTORCH_EXTENSION_NAME={MODULE}",
        "-DTORCH_API_INCLUDE_EXTENSION_H",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        "-DUSE_C10D",
        f"-I{header_folder()}",
        *[f"-I{folder}" for folder in include_paths()],
        f"-I{sysconfig.get_paths()['include']}",
        str(_SOURCE),
        "-o",
        str(target),
        f"-L{torch_folder}",
        "-lc10",
        "-ltorch",
        "-ltorch_cpu",
        "-ltorch_python",
        str(library),
        f"-Wl,-rpath,{torch_folder}",
        f"-Wl,-rpath,{library.parent}",
    ]


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def build(again: bool = False) -> Path:
    """Compiles the module, unless it exists, and returns its path."""
    path = built_path()
    if path.exists() and not again:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        subprocess.run(command(target), check=True, timeout=_LIMIT_S)
        # Programs that have loaded the old file keep it.
        os.replace(target, path)
    except FileNotFoundError as error:
        raise SystemExit(f"libdist: the C++ subclass needs a C++ compiler: {error}") from error
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"libdist: the compiler failed with status {error.returncode}; the subclass in Python "
            "needs no compiler"
        ) from error
    finally:
        target.unlink(missing_ok=True)
    return path


def main(arguments: list[str]) -> None:
    """Runs `python -m libdist.torch`."""
    if arguments not in (["build"], ["build", "--again"], ["path"]):
        raise SystemExit("usage: python -m libdist.torch build [--again] | path")
    if arguments == ["path"]:
        print(built_path())
        return
    path = build("--again" in arguments)
    print(f"built {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
