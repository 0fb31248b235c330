#!/bin/sh
# Builds ../consumer.c or ../consumer.cpp against an installed libdist through pkg-config, shared and static.
#
#     build.sh <prefix> <output folder> c|cxx
set -eu
prefix=$1
out=$2
here=$(cd "$(dirname "$0")" && pwd)
# The compiler may have arguments.
# shellcheck disable=SC2086
case $3 in
    c) set -- ${CC:-cc} "$here/../consumer.c" ;;
    cxx) set -- ${CXX:-c++} -std=c++17 "$here/../consumer.cpp" ;;
    *) echo "build.sh: unknown language $3" >&2; exit 2 ;;
esac

for dir in "$prefix"/lib "$prefix"/lib64 "$prefix"/lib/*; do
    if [ -f "$dir/pkgconfig/dist.pc" ]; then
        export PKG_CONFIG_PATH="$dir/pkgconfig"
    fi
done
libdir=$(pkg-config --variable=libdir dist)

mkdir -p "$out"
# The shell splits the output of pkg-config into words, as its users do.
# shellcheck disable=SC2046
"$@" -Wall -Wextra -Werror $(pkg-config --cflags --libs dist) -Wl,-rpath,"$libdir" -o "$out/shared"

# Only libdist itself is linked statically.
static=$(pkg-config --static --libs dist | sed 's/-ldist/-Wl,-Bstatic -ldist -Wl,-Bdynamic/')
# shellcheck disable=SC2046,SC2086
"$@" -Wall -Wextra -Werror $(pkg-config --cflags dist) $static -o "$out/static"
