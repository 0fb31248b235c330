"""All-reduces between processes without a compiler: Python's ctypes loads libdist and calls it.

    distrun --nproc-per-node 3 python3 all_reduce.py <prefix of the installed libdist>

Needs nothing but Python's standard library. The constants are read from the installed header, the one place where
they are written down.
"""

import ctypes
import glob
import re
import sys
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_size_t, c_uint64, c_void_p

COUNT = 1000


def constants(prefix):
    with open(f"{prefix}/include/dist.h", encoding="utf-8") as header:
        found = re.findall(r"^#define\s+(DIST_\w+)\s+\(?(-?\d+)\)?\s*$", header.read(), re.MULTILINE)
    return {name: int(value) for name, value in found}


def load(prefix):
    (path,) = glob.glob(f"{prefix}/lib*/libdist.so.0") + glob.glob(f"{prefix}/lib/*/libdist.so.0")
    dist = ctypes.CDLL(path)
    dist.dist_world.restype = c_void_p
    dist.dist_last_error.restype = c_char_p
    dist.dist_version_string.restype = c_char_p
    dist.dist_init.argtypes = [c_void_p]
    dist.dist_get_rank.argtypes = [c_void_p]
    dist.dist_get_world_size.argtypes = [c_void_p]
    options_and_work = [c_void_p, POINTER(c_void_p)]
    dist.dist_all_reduce.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_int32, *options_and_work]
    dist.dist_all_gather.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_int32, *options_and_work]
    return dist


def main(prefix):
    named = constants(prefix)
    dist = load(prefix)

    def check(status, call):
        if status != named["DIST_OK"]:
            sys.exit(f"{call}: status {status}: {dist.dist_last_error().decode()}")

    check(dist.dist_init(None), "dist_init")
    world = dist.dist_world()
    rank, size = dist.dist_get_rank(world), dist.dist_get_world_size(world)

    values = (c_float * COUNT)(*((rank + 1) * i for i in range(COUNT)))
    check(
        dist.dist_all_reduce(world, values, values, COUNT, named["DIST_F32"], named["DIST_SUM"], None, None),
        "dist_all_reduce",
    )
    expected = [size * (size + 1) // 2 * i for i in range(COUNT)]
    if list(values) != expected:
        sys.exit(f"rank {rank}: the sum is wrong")

    mine, everybody = c_uint64(rank * rank), (c_uint64 * size)()
    check(
        dist.dist_all_gather(world, byref(mine), everybody, 1, named["DIST_U64"], None, None),
        "dist_all_gather",
    )
    if list(everybody) != [r * r for r in range(size)]:
        sys.exit(f"rank {rank}: gathered {list(everybody)}")

    # A mistake comes back as a status and a text, here too.
    if dist.dist_all_reduce(world, None, values, COUNT, named["DIST_F32"], named["DIST_SUM"], None, None) >= 0:
        sys.exit("a NULL buffer was accepted")
    if not dist.dist_last_error():
        sys.exit("the refusal of a NULL buffer has no text")

    check(dist.dist_finalize(), "dist_finalize")
    print(f"libdist {dist.dist_version_string().decode()}: rank {rank} of {size}: sums correct")


if __name__ == "__main__":
    main(sys.argv[1])
