"""What torch loads when it is imported: the name "gloo" for libdist, if the user asks for it.

torch finds this module by the entry point `torch.backends`, from torch 2.5 on. The module imports
nothing unless LIBDIST_AS_GLOO=1, because every program with torch runs it.
"""

import os


def autoload():
    """Registers the back end under the name "gloo" if LIBDIST_AS_GLOO=1."""
    if os.environ.get("LIBDIST_AS_GLOO") == "1":
        from libdist.torch import register

        register()
