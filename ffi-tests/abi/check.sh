#!/bin/sh
# The gate of the binary interface: compares what C callers see with the baseline, dist.abi.
#
#   check.sh            compares; 0: compatible, 1: incompatible, 77: a tool is missing
#   check.sh --update   writes the baseline and symbols.txt anew, after a change that was meant
#
# What is compared is the debug information of a stub: a shared library with every function of the headers,
# compiled by the C compiler. So the baseline is small and the same for every version of the Rust compiler.
# That the real library matches the header is what the tests header, exports and ctests show. New functions,
# and fields appended to structs with struct_size, are compatible; everything else needs a new soname.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
include=$(cd "${DIST_INCLUDE_DIR:-$here/../../include}" && pwd)
cc=${CC:-cc}

for tool in "${cc%% *}" abidw abidiff; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "$tool is not installed (abidw and abidiff come with libabigail)"
        exit 77
    fi
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Declarations become definitions. After the preprocessor there are no comments, and the only parentheses
# outside of typedefs and structs are those of functions.
$cc -E -P "-I$include" -include dist_backend.h -x c /dev/null -o "$work/plain.c"
awk '
    BEGIN { print "#include <dist_backend.h>" }
    { text = text " " $0 }
    END {
        depth = 0
        for (i = 1; i <= length(text); i++) {
            c = substr(text, i, 1)
            if (c == "{") depth++
            if (c == "}") depth--
            if (c == ";" && depth == 0) {
                if (item !~ /typedef|extern|struct[^(]*\{/ && item ~ /[ *]dist_[a-z_]+\(.*\)[ ]*$/)
                    print item " { for (;;) { } }"
                item = ""
            } else {
                item = item c
            }
        }
    }' "$work/plain.c" >"$work/stub.c"
# In its folder, so that the baseline does not depend on where that is.
(cd "$work" && $cc -std=c99 -g -fPIC -shared -w "-I$include" -Wl,-soname,libdist.so.0 stub.c -o stub.so)
abidw --no-corpus-path --no-comp-dir-path --no-show-locs --exported-interfaces-only \
    --out-file "$work/dist.abi" "$work/stub.so"
nm -D --defined-only "$work/stub.so" | awk '{ print $NF }' | LC_ALL=C sort >"$work/symbols.txt"

if [ "${1:-}" = --update ]; then
    cp "$work/dist.abi" "$here/dist.abi"
    cp "$work/symbols.txt" "$here/symbols.txt"
    echo "written: $here/dist.abi, $here/symbols.txt"
    exit 0
fi

# What is left of the report once compatible differences are taken out: appended fields. An older caller's
# struct is shorter, and what it lacks counts as zero; a field in a former gap would be read from garbage.
LC_ALL=C abidiff --leaf-changes-only --no-show-locs --no-added-syms "$here/dist.abi" "$work/dist.abi" \
    >"$work/report.txt" || [ $? -ge 4 ]
awk '
    /^$/ || /^Leaf changes summary/ || /^Changed leaf types summary/ { next }
    /^Removed.Changed.Added [a-z]* summary: 0 Removed, 0 Changed/ { next }
    /^.struct dist_[a-z_]*_(options|vtable|operation|outcome|query|host|setup|created|plugin)_t. changed:$/ { next }
    /^  type size changed from [0-9]+ to [0-9]+ / && $7 > $5 { size = $5; next }
    /^  [0-9]+ data member insertions?:$/ { next }
    /^    .*, at offset [0-9]+ \(in bits\)$/ && $(NF - 2) >= size && size > 0 { next }
    { bad = 1 }
    END { exit bad }
' "$work/report.txt" || {
    cat "$work/report.txt"
    echo "the interface has changed incompatibly; if that is meant, the soname changes, and then: $0 --update"
    exit 1
}
