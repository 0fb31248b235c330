"""Prints the back-trace of a call that fails, to show whether the debug information of the library is found.

    python3 back_trace.py <libdist.so.0> <dist.h>
"""

import ctypes
import re
import sys

dist = ctypes.CDLL(sys.argv[1])
dist.dist_last_error_backtrace.restype = ctypes.c_char_p
with open(sys.argv[2], encoding="utf-8") as header:
    detail = int(re.search(r"#define DIST_DEBUG_DETAIL\s+(\d+)", header.read())[1])
if dist.dist_set_debug_level(detail) < 0:
    sys.exit("the debug level DETAIL was refused")
if dist.dist_set_log_level(77) >= 0:
    sys.exit("the log level 77 was accepted")
print(dist.dist_last_error_backtrace().decode())
