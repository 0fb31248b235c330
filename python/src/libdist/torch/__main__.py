"""`python -m libdist.torch build` compiles the C++ subclass against the installed torch."""

import sys

from ._build import main

main(sys.argv[1:])
