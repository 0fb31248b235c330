#!/bin/sh
# Builds ../consumer.c against an installed libdist through pkg-config, shared and static.
#
#     build.sh <prefix> <output folder>
set -eu
prefix=$1
out=$2
here=$(cd "$(dirname "$0")" && pwd)
cc=${CC:-cc}

for dir in "$prefix"/lib "$prefix"/lib64 "$prefix"/lib/*; do
    if [ -f "$dir/pkgconfig/dist.pc" ]; then
        export PKG_CONFIG_PATH="$dir/pkgconfig"
    fi
done
libdir=$(pkg-config --variable=libdir dist)

mkdir -p "$out"
# Word splitting of what pkg-config prints is what pkg-config is for.
# shellcheck disable=SC2046
$cc -Wall -Wextra -Werror "$here/../consumer.c" $(pkg-config --cflags --libs dist) -Wl,-rpath,"$libdir" -o "$out/shared"

# Everything but libdist itself stays shared: the C library wants to be.
static=$(pkg-config --static --libs dist | sed 's/-ldist/-Wl,-Bstatic -ldist -Wl,-Bdynamic/')
# shellcheck disable=SC2046,SC2086
$cc -Wall -Wextra -Werror "$here/../consumer.c" $(pkg-config --cflags dist) $static -o "$out/static"
