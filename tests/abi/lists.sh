# SPDX-License-Identifier: MIT
# Sourced by the scripts here: what a header, a version script and a library say about the
# interface, each as a sorted list or as abidw's description.
# shellcheck shell=bash
export LC_ALL=C

# header_names HEADER: the functions that it declares
header_names() {
    "$CC" -E -P '-DATTN_API=EXPORTED' "$1" | tr '\n' ' ' | tr ';' '\n' |
        sed -n 's/^.*EXPORTED[^(]*[ *]\([A-Za-z_][A-Za-z0-9_]*\) *(.*/\1/p' | sort
}

# constant_names HEADER: its enumerators
constant_names() {
    "$CC" -E -P "$1" | tr '\n' ' ' | grep -oE 'enum \{[^}]*\}' | grep -oE 'ATTN_[A-Z0-9_]+' | sort -u
}

# map_names MAP: name@@NODE, for each name of each node
map_names() {
    sed 's:/\*.*\*/::' "$1" | awk '
        /\{/ { node = $1; global = 0 }
        /global:/ { global = 1 }
        /local:/ { global = 0 }
        global && match($0, /[A-Za-z_*][A-Za-z0-9_*]*;/) {
            print substr($0, RSTART, RLENGTH - 1) "@@" node
        }' | sort
}

# library_names LIBRARY: name@@NODE. The linker adds the nodes themselves, of type A.
library_names() {
    nm -D --defined-only --with-symbol-versions "$1" | awk '$2 != "A" { print $3 }' | sort
}

# baseline_names ABI: name@@NODE, as abidw wrote them down
baseline_names() {
    sed -n "s/.*<elf-symbol name='\([^']*\)' version='\([^']*\)'.*/\1@@\2/p" "$1" | sort
}

# describe LIBRARY HEADERS: the functions of a library with debug information and the types of
# these headers alone. No line of it depends on the machine.
describe() {
    abidw --headers-dir "$2" --drop-private-types --exported-interfaces-only --no-corpus-path \
        --no-comp-dir-path --no-show-locs --no-parameter-names --no-elf-needed \
        --no-write-default-sizes --type-id-style hash "$1"
}
