# SPDX-License-Identifier: MIT
# Sourced by the scripts of this directory. ctest says in the environment where the stage is.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
. "$root/cmake/checks.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Only the stage: never a libattn that this machine has installed.
libdir=$ATTN_STAGE/$ATTN_LIBDIR
unset PKG_CONFIG_LIBDIR
export PKG_CONFIG_PATH=$libdir/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
export LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# rustup's directory, which only login shells have in PATH.
PATH=$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin
export CARGO_NET_OFFLINE=true CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$ATTN_BUILD/rust
export GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=1
export GOCACHE=$ATTN_BUILD/go/cache GOPATH=$ATTN_BUILD/go/path

# Ends the test when a toolchain is missing: skipped, but in CI a failure.
wants() {
    local what=$1
    shift
    "$@" >/dev/null 2>&1 && return
    echo "$what is missing here"
    [ "${CI:-}" != true ] || exit 1
    exit 77
}
