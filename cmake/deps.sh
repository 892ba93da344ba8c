# SPDX-License-Identifier: MIT
# Sourced by tests/run and bench/run: finds out which packages a machine lacks
# and installs them, by apt on Debian and its children; elsewhere it prints what
# to install. Set install=no to forbid.
#
#   deps_ensure build|test ...    all of these features, or the script ends
#   deps_try go rust ...          the same, or a word and on without them, except in CI
#   deps_venv DIR REQUIREMENTS    a Python environment with these packages
#   deps_wheels DIR REQUIREMENTS  these packages, for an environment without a network
# shellcheck shell=bash

say() { printf '%s\n' "$*"; }
die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# --- what a feature needs: Debian's package names, each with a test for it

has_cmake() {
    command -v cmake && cmake --version | awk 'NR == 1 { split($3, v, "."); exit !(v[1] > 3 || v[1] == 3 && v[2] >= 21) }'
}
has_cc() { command -v "${CC:-cc}" || command -v gcc || command -v clang; }
has_cxx() { command -v "${CXX:-c++}" || command -v g++ || command -v clang++; }
has_module() { pkg-config --exists "$1"; }
has_openblas() {
    has_module openblas && return
    # CMake finds the library without pkg-config too.
    printf '#include <cblas.h>\nint main(void) { return !cblas_sgemm; }\n' |
        "${CC:-cc}" -x c - -o /dev/null -lopenblas
}
# rustup's directory is in the PATH of login shells only.
has_cargo() { command -v cargo || [ -x "${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo" ]; }
has_fuzzer() {
    echo 'int LLVMFuzzerTestOneInput(const char *x, long n) { return !x && n; }' |
        clang -x c - -o /dev/null -fsanitize=fuzzer,address,undefined
}
has_venv() { python3 -c 'import venv, ensurepip, sys; sys.exit(sys.version_info < (3, 8))'; }

need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

# Sets missing to the packages that these features lack here.
deps_missing() {
    missing=
    local feature
    for feature; do
        case $feature in
        build)
            need cmake has_cmake
            need ninja-build command -v ninja
            need gcc has_cc
            need libc6-dev eval 'echo "#include <stdlib.h>" | "${CC:-cc}" -E -'
            need pkg-config command -v pkg-config
            need libopenblas-dev has_openblas
            ;;
        abi) need abigail-tools command -v abidiff ;;
        package)
            need lintian command -v lintian
            need dpkg-dev command -v dpkg-shlibdeps
            need man-db command -v man
            need groff-base command -v groff
            need bsdextrautils command -v col
            ;;
        test)
            need g++ has_cxx
            need libcmocka-dev has_module cmocka
            need binutils command -v objdump
            need python3 command -v python3
            need python3-venv has_venv
            ;;
        doc)
            need doxygen command -v doxygen
            need zsh command -v zsh
            ;;
        clang) need clang command -v clang ;;
        go) need golang-go command -v go ;;
        rust) need 'cargo rust-clippy rustfmt' has_cargo ;;
        fuzz)
            need clang command -v clang
            need libclang-rt-dev has_fuzzer
            ;;
        ccache) need ccache command -v ccache ;;
        valgrind) need valgrind command -v valgrind ;;
        coverage) need gcovr command -v gcovr ;;
        cross)
            need gcc-aarch64-linux-gnu command -v aarch64-linux-gnu-gcc
            need qemu-user command -v qemu-aarch64
            ;;
        esac
    done
    missing=${missing# }
}

# --- installing

is_debian() { [ -e /etc/debian_version ] && command -v apt-get >/dev/null; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif ! command -v sudo >/dev/null; then
        die "Installing needs root or sudo. As root: apt-get install $missing"
    elif [ -t 0 ]; then
        sudo "$@"
    else
        sudo -n "$@"
    fi
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a \
        apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

apt_install() {
    say "Installing by apt-get: $*"
    apt_get update || say "apt-get update failed; going on with the lists that are here"
    apt_get install --no-install-recommends "$@"
}

# What a package of Debian is called elsewhere.
other_name() {
    case $1:$2 in
    dnf:gcc | pacman:gcc | brew:gcc | apk:gcc | zypper:gcc) echo gcc ;;
    dnf:g++ | zypper:g++) echo gcc-c++ ;;
    pacman:g++) echo gcc ;;
    apk:g++) echo g++ ;;
    dnf:ninja-build) echo ninja-build ;;
    *:ninja-build) echo ninja ;;
    apk:libc6-dev) echo musl-dev ;;
    dnf:libc6-dev | zypper:libc6-dev) echo glibc-devel ;;
    *:libc6-dev) echo ;;
    dnf:pkg-config) echo pkgconf-pkg-config ;;
    zypper:pkg-config) echo pkg-config ;;
    *:pkg-config) echo pkgconf ;;
    dnf:libopenblas-dev | zypper:libopenblas-dev) echo openblas-devel ;;
    apk:libopenblas-dev) echo openblas-dev ;;
    *:libopenblas-dev) echo openblas ;;
    dnf:libcmocka-dev | zypper:libcmocka-dev) echo libcmocka-devel ;;
    apk:libcmocka-dev) echo cmocka-dev ;;
    *:libcmocka-dev) echo cmocka ;;
    pacman:python3 | brew:python3 | pacman:python3-venv | brew:python3-venv) echo python ;;
    apk:python3-venv) echo py3-pip ;;
    *:python3-venv) echo python3 ;;
    dnf:golang-go) echo golang ;;
    dnf:rust-clippy) echo clippy ;;
    pacman:cargo | pacman:rust* | brew:cargo | brew:rust*) echo rust ;;
    *:golang-go) echo go ;;
    *) echo "$2" ;;
    esac
}

# Ends the script with the names of what is missing, as this system has them.
print_packages() {
    local tool words package
    for tool in apt-get dnf zypper pacman apk brew; do
        command -v "$tool" >/dev/null && break
        tool=
    done
    words=$missing
    if [ -n "$tool" ] && [ "$tool" != apt-get ]; then
        words=$(for package in $missing; do other_name "$tool" "$package"; done | sort -u | xargs)
    fi
    say "These packages are missing: $words"
    case $tool in
    '') say "(Debian's names; install what your system calls them)" ;;
    pacman) say "Install them: pacman -S $words" ;;
    apk) say "Install them: apk add $words" ;;
    *) say "Install them: $tool install $words" ;;
    esac
    die "Then run this again."
}

deps_ensure() {
    deps_missing "$@"
    [ -n "$missing" ] || return 0
    if [ "${install:-yes}" = no ] || ! is_debian; then
        print_packages
    fi
    # shellcheck disable=SC2086
    apt_install $missing || die "Installing failed: $missing"
    deps_missing "$@"
    [ -z "$missing" ] || die "Installed, and yet still missing or too old: $missing"
}

# For what only a part of the tests needs: without it they say so and are skipped.
deps_try() {
    if [ "${CI:-}" = true ]; then
        deps_ensure "$@"
        return
    fi
    deps_missing "$@"
    [ -n "$missing" ] || return 0
    if [ "${install:-yes}" = no ] || ! is_debian; then
        say "Going on without these (Debian's names); what needs them is skipped: $missing"
        return
    fi
    # shellcheck disable=SC2086
    (apt_install $missing) || say "Going on without them; what needs them is skipped: $missing"
}

# --- Python

# Fails when the environment cannot be had; then what needs it is skipped.
deps_venv() {
    local dir=$1 requirements=$2
    if cmp -s "$requirements" "$dir/installed.txt" && "$dir/bin/python" -c '' 2>/dev/null; then
        return 0
    fi
    if [ "${install:-yes}" = no ]; then
        say "Python's packages are not installed and --no-install was given"
        return 1
    fi
    say "Installing by pip into $dir:" "$(grep -o '^[A-Za-z0-9_.-]*' "$requirements" | grep -v '^-' | sort -u | xargs)"
    rm -rf "$dir"
    python3 -m venv "$dir" &&
        "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
            --no-deps -r "$requirements" </dev/null &&
        cp "$requirements" "$dir/installed.txt"
}

# Puts the wheels of lists of requirements into DIR, for pip without a network, and an empty
# environment into DIR/venv. Fails as deps_venv does.
deps_wheels() {
    local dir=$1 list lists=()
    shift
    if cat "$@" | cmp -s - "$dir/installed.txt" && "$dir/venv/bin/python" -c '' 2>/dev/null; then
        return 0
    fi
    if [ "${install:-yes}" = no ]; then
        say "Python's wheels are not downloaded and --no-install was given"
        return 1
    fi
    for list; do
        lists+=(-r "$list")
    done
    say "Downloading by pip into $dir:" "$(cat "$@" | grep -o '^[A-Za-z0-9_.-]*' | xargs)"
    rm -rf "$dir"
    python3 -m venv "$dir/venv" &&
        "$dir/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-input \
            --no-deps --only-binary :all: -d "$dir" "${lists[@]}" </dev/null &&
        cat "$@" >"$dir/installed.txt"
}

# --- building

# The cores that this process may use.
cpus() { nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1; }

# Sets build_root to where builds go; $root is the source.
build_root() {
    build_root=${ATTN_BUILD_DIR:-$root/build}
    mkdir -p "$build_root"
    build_root=$(cd "$build_root" && pwd -P)
}

# configure SOURCE BUILD PRESET [ARGUMENTS OF CMAKE]: again and again into one directory
configure() {
    local source=$1 build=$2 preset=$3 home
    shift 3
    home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt" 2>/dev/null || :)
    if [ -n "$home" ] && [ "$home" != "$source" ]; then
        say "$build was made from $home; starting it again"
        rm -rf "$build"
    fi
    if [ ! -e "$build/CMakeCache.txt" ] && command -v ninja >/dev/null; then
        set -- -G Ninja "$@"
    fi
    (cd "$source" && cmake --preset "$preset" -B "$build" "$@")
}
