#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes of the staged components what Debian's policy wants of packages: stripped files,
# compressed manual pages, copyright and changelogs, dependencies and control files. Run by CPack.
#
#   deb-stage.sh SOURCE STAGE CONTROL VERSION MAINTAINER
set -euo pipefail
export LC_ALL=C

source=$1
stage=$2
control=$3
version=$4
maintainer=$5
packages=(attn_Runtime:libattn0 attn_Development:libattn-dev attn_Tools:attn-bench)

die() {
    echo "deb-stage.sh: $*" >&2
    exit 1
}

for tool in dpkg-architecture dpkg-shlibdeps strip nm gzip; do
    command -v "$tool" >/dev/null || die "$tool is missing (dpkg-dev, binutils)"
done
libdir=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
library=$(echo "$stage/attn_Runtime/$libdir"/libattn.so.0.*)
[ -e "$library" ] || die "there is no $libdir/libattn.so.0: configure with the preset deb"
rm -rf "$control"
mkdir -p "$control"

# --- files

strip_files() {
    local file
    find "$stage" -type f \( -name '*.so.*' -o -path '*/bin/*' -o -name '*.a' \) |
        while read -r file; do
            case $file in
            *.a) strip --strip-debug --remove-section=.comment --enable-deterministic-archives "$file" ;;
            *) strip --strip-unneeded --remove-section=.comment --remove-section=.note "$file" ;;
            esac
        done
}

# NEWS.md as Debian's changelog: sections become entries, a release without a date UNRELEASED.
changelog() {
    local epoch=${SOURCE_DATE_EPOCH:-$(stat -c %Y "$source/NEWS.md")}
    sed -E 's/\[([^]]*)\]\([^)]*\)/\1/g' "$source/NEWS.md" |
        awk -v revision="${version##*-}" -v maintainer="$maintainer" -v epoch="$epoch" '
        function rfc(when,   command, line) {
            command = "date -u -d \"" when "\" \"+%a, %d %b %Y %T +0000\""
            command | getline line
            close(command)
            return line
        }
        function end_item(   n, i, words, line, lead) {
            n = split(item, words, " ")
            lead = "  * "
            for (i = 1; i <= n; i++) {
                if (line && length(line words[i]) > 72) { print lead line; line = ""; lead = "    " }
                line = line (line ? " " : "") words[i]
            }
            if (line) print lead line
            item = ""
        }
        function end_entry() {
            end_item()
            if (date) printf "\n -- %s  %s\n\n", maintainer, date
        }
        /^## [0-9]/ {
            end_entry()
            released = match($0, /[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]/)
            date = rfc(released ? substr($0, RSTART, 10) : "@" epoch)
            printf "libattn (%s-%s) %s; urgency=medium\n\n", $2, revision, released ? "unstable" : "UNRELEASED"
            next
        }
        /^$/ || /^- / { end_item() }
        date { sub(/^- /, ""); item = item " " $0 }
        END { end_entry() }'
}

document() {
    local doc=$stage/$1/usr/share/doc/$2
    rm -rf "$stage/$1/usr/share/doc/attn"
    mkdir -p "$doc"
    cp "$source/LICENSE" "$doc/copyright"
    changelog | gzip -9n >"$doc/changelog.Debian.gz"
    gzip -9n <"$source/NEWS.md" >"$doc/changelog.gz"
    [ ! -d "$stage/$1/usr/share/man" ] || find "$stage/$1/usr/share/man" -type f -exec gzip -9n {} +
    chmod -R u=rwX,go=rX "$stage/$1"
}

# --- control files of the library

# name@NODE, and the release that began the node: ATTN_0.1 is of 0.1.0.
symbols() {
    echo "libattn.so.0 libattn0 #MINVER#"
    echo "* Build-Depends-Package: libattn-dev"
    nm -D --defined-only --with-symbol-versions "$library" |
        awk '{ split($3, part, "@+"); node = part[2] ? part[2] : part[1]
               print " " part[1] "@" node " " substr(node, 6) ".0" }' | sort
}

write_control() {
    local since
    symbols >"$control/symbols"
    since=$(sed -n 's/^ .* //p' "$control/symbols" | sort -V | tail -n 1)
    echo "libattn 0 libattn0 (>= $since)" >"$control/shlibs"
    echo "activate-noawait ldconfig" >"$control/triggers"
    chmod 644 "$control"/*
}

# The libraries that a package needs, libattn0 among them: dpkg-shlibdeps finds it by what a
# package that is being built has in DEBIAN.
depends() {
    local work=$control/work
    mkdir -p "$work/debian"
    printf 'Source: libattn\n\nPackage: %s\nArchitecture: any\n' "$2" >"$work/debian/control"
    (cd "$work" && find "$stage/$1" -type f \( -name '*.so.*' -o -path '*/bin/*' \) -exec \
        dpkg-shlibdeps -O "-S$stage/attn_Runtime" {} +) |
        sed -n 's/^shlibs:Depends=//p' >"$control/$2.depends"
    [ -s "$control/$2.depends" ] || die "dpkg-shlibdeps found nothing for $2"
}

strip_files
write_control
for pair in "${packages[@]}"; do
    [ ! -d "$stage/${pair%:*}" ] || mkdir "$stage/${pair%:*}/DEBIAN"
done
cp "$control/symbols" "$control/shlibs" "$stage/attn_Runtime/DEBIAN"
for pair in "${packages[@]}"; do
    component=${pair%:*} package=${pair#*:}
    [ -d "$stage/$component" ] || continue
    [ "$package" = libattn-dev ] || depends "$component" "$package"
    document "$component" "$package"
done
rm -r "$stage"/*/DEBIAN
