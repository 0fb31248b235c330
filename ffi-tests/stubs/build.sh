#!/bin/sh
# Builds the stubs and their self-test into a folder: libcuda.so.1, libnccl.so.2, old/libnccl.so.2 (2.20.5),
# libucc.so.1 and selftest. CC and CFLAGS may say how; NCCL_INCLUDE_DIR and CUDA_INCLUDE_DIR, where the real nccl.h and cuda.h are,
# which are used then instead of our declarations. Without the former, the wheel of NCCL is looked for in python3;
# empty, it is not.
#
#   sh build.sh FOLDER
set -eu
folder=${1:?where to?}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder/old"

if [ -z "${NCCL_INCLUDE_DIR+set}" ]; then
    NCCL_INCLUDE_DIR=$(python3 -c 'import nvidia.nccl as wheel; print(next(iter(wheel.__path__)) + "/include")' \
        2>/dev/null || true)
    test -e "$NCCL_INCLUDE_DIR/nccl.h" || NCCL_INCLUDE_DIR=
fi

# Words of flags, the folders' names apart.
set -- -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -g -O2 -pthread ${CFLAGS:-}
if [ -n "$NCCL_INCLUDE_DIR" ]; then
    set -- "$@" -DDIST_STUB_REAL_NCCL_H -isystem "$NCCL_INCLUDE_DIR"
fi
# nccl.h wants headers of CUDA's runtime, of which the stubs need next to nothing.
set -- "$@" -isystem "$here/shim"
if [ -n "${CUDA_INCLUDE_DIR:-}" ]; then
    set -- "$@" -DDIST_STUB_REAL_CUDA_H -isystem "$CUDA_INCLUDE_DIR"
fi

shared() {
    output=$1
    shift
    ${CC:-cc} -shared -fPIC -fvisibility=hidden -Wl,-soname,"$(basename "$output")" -o "$output" "$@"
}

${CC:-cc} "$@" -fsyntax-only "$here/check_declarations.c"
shared "$folder/libcuda.so.1" "$@" "$here"/cuda_*.c "$here/stub_common.c"
# The loader finds the stub of CUDA beside that of NCCL, or takes the one that is loaded already.
for library in "$folder/libnccl.so.2" "$folder/old/libnccl.so.2"; do
    case ${library#"$folder"/} in old/*) version=22005 ;; *) version=23007 ;; esac
    shared "$library" "$@" -DSTUB_NCCL_VERSION=$version "$here"/nccl_*.c "$here/stub_common.c" \
        -L"$folder" -l:libcuda.so.1 -lm -Wl,-z,now '-Wl,-rpath,$ORIGIN:$ORIGIN/..'
done
# UCC loads its component for CUDA memory itself, so libdist looks for its name among the loaded objects.
echo 'int dist_stub_ucc_mc_cuda;' >"$folder/mc_cuda.c"
shared "$folder/libucc_mc_cuda.so" "$@" "$folder/mc_cuda.c"
shared "$folder/libucc.so.1" "$@" "$here/ucc_stub.c" -L"$folder" -Wl,--no-as-needed -l:libucc_mc_cuda.so \
    '-Wl,-rpath,$ORIGIN'
${CC:-cc} "$@" -o "$folder/selftest" "$here"/selftest*.c \
    -L"$folder" -l:libnccl.so.2 -l:libcuda.so.1 -ldl -lm '-Wl,-rpath,$ORIGIN'
