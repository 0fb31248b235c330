"""What torch loads when it is imported: the name "gloo" for libdist, if the user asks for it.

torch finds this module by the entry point `torch.backends`, from torch 2.5 on. The module imports
nothing unless LIBDIST_AS_GLOO=1, because every program with torch runs it.
"""

import os
import sys


def autoload():
    """Registers the back end under the name "gloo" if LIBDIST_AS_GLOO=1.

    If the import of `libdist.torch` has caused that of torch, it registers the name at its end.
    """
    if os.environ.get("LIBDIST_AS_GLOO") == "1" and "libdist.torch" not in sys.modules:
        from libdist.torch import register

        register()
