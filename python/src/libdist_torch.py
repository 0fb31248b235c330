"""What torch loads when it is imported: the name "gloo" for libdist, and the secret of the job.

torch finds this module by the entry point `torch.backends`, from torch 2.5 on. Every program with
torch runs it. The module imports nothing unless LIBDIST_AS_GLOO=1, or the launcher's store asks for
a secret: torch looks for the back end "libdist" only after the processes have met in the store.
"""

import os
import sys

_SECRET_VARIABLES = ("DIST_STORE_SECRET_FD", "DIST_STORE_SECRET_FILE")


def autoload():
    """Registers the back end if the environment asks for it.

    If the import of `libdist.torch` has caused that of torch, it registers the names at its end.
    """
    is_wanted = os.environ.get("LIBDIST_AS_GLOO") == "1" or (
        "RANK" in os.environ and any(os.environ.get(name) for name in _SECRET_VARIABLES)
    )
    if is_wanted and "libdist.torch" not in sys.modules:
        from libdist.torch import register

        register()
