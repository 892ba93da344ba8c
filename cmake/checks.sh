# SPDX-License-Identifier: MIT
# Sourced by shell tests: each check is a line of TAP, which tests/run counts.
#
#   check 'what must hold' COMMAND ...    its output is shown when it fails
#   skip 'what would be checked' 'why not'
#   checks_end                            the plan; fails when a check failed
# shellcheck shell=bash

n_checks=0
n_failures=0

check() {
    local name=$1 output
    shift
    n_checks=$((n_checks + 1))
    if output=$("$@" 2>&1); then
        printf 'ok %d - %s\n' "$n_checks" "$name"
        return
    fi
    n_failures=$((n_failures + 1))
    printf 'not ok %d - %s\n' "$n_checks" "$name"
    printf '%s\n' "$output" | sed 's/^/# /'
}

skip() {
    n_checks=$((n_checks + 1))
    printf 'ok %d - %s # SKIP %s\n' "$n_checks" "$1" "$2"
}

checks_end() {
    printf '1..%d\n' "$n_checks"
    [ "$n_failures" = 0 ]
}
