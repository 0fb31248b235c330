"""What the back end uses of the rest of the package: the library file and the exceptions."""

from __future__ import annotations

import os


def library_path() -> str:
    """Returns the path of the C library."""
    return os.environ["LIBDIST_LIBRARY"]


class Error(Exception):
    """Temporary."""
