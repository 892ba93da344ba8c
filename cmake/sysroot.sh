# SPDX-License-Identifier: MIT
# Sourced by tests/run: what a cross build links against and runs on.
#
#   sysroot_ensure DIR    arm64 libraries of Debian in DIR (absolute), or it fails with a sentence
#
# The packages come by the machine's own apt, from the mirror that it is set up
# for, but with lists and a state of their own: nothing is registered with dpkg
# and no architecture is added to the machine. Needs no root.
# shellcheck shell=bash

sysroot_packages="libc6-dev libgomp1 libopenblas-dev libopenblas0-pthread libcmocka-dev"

# apt-get for arm64 in the directory $1, as if nothing were installed.
sysroot_apt() {
    local state=$1
    shift
    apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 \
        -o Dir::State="$state" -o Dir::State::lists="$state/lists" \
        -o Dir::State::status="$state/status" -o Dir::State::extended_states="$state/extended" \
        -o Dir::Cache="$state" -o Dir::Cache::archives="$state/archives" \
        -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none "$@" </dev/null
}

# Package files into a tree that looks like an installed one: /lib is /usr/lib, links lead nowhere
# outside, and OpenBLAS has the names that update-alternatives would give it.
sysroot_unpack() {
    local root=$1 deb dir link
    shift
    for dir in bin lib lib64 sbin; do
        mkdir -p "$root/usr/$dir"
        ln -s "usr/$dir" "$root/$dir"
    done
    for deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$root" || return
    done
    find "$root" -type l -lname '/*' | while read -r link; do
        ln -sfrn "$root$(readlink "$link")" "$link"
    done
    for dir in "$root"/usr/lib/*/openblas-pthread; do
        ln -s openblas-pthread/libopenblas.so openblas-pthread/libopenblas.so.0 "$dir/.." &&
            ln -sf ../openblas-pthread/pkgconfig/openblas.pc "$dir/../pkgconfig/" || return
    done
}

sysroot_ensure() {
    local root=$1 state=$1.apt
    [ ! -e "$root/complete" ] || return 0
    if ! is_debian; then
        say "The libraries for 64-bit ARM are had by apt, which is not here"
        return 1
    fi
    if [ "${install:-yes}" != yes ]; then
        say "The libraries for 64-bit ARM are not there and --no-install was given"
        return 1
    fi
    say "Getting by apt-get, for arm64, into $root: $sysroot_packages"
    rm -rf "$root" "$state"
    mkdir -p "$root" "$state/lists/partial" "$state/archives/partial"
    : >"$state/status"
    sysroot_apt "$state" update || say "apt-get update failed for arm64 in part"
    # shellcheck disable=SC2086
    sysroot_apt "$state" install --no-install-recommends --download-only $sysroot_packages &&
        sysroot_unpack "$root" "$state"/archives/*.deb &&
        : >"$root/complete" && rm -rf "$state" && return
    say "The mirrors of this machine's apt do not give the libraries for 64-bit ARM"
    return 1
}
