#!/bin/sh
# Builds CRIU from Debian's source package into a directory ($1), where this host has none that is new enough: Debian 12's
# (3.17) does not work on newer kernels. A minute on two cores. Checkpoints (outlive serve --checkpoint-at) need it, and
# nothing else does.
set -eu
into=${1:?which directory?}
version=4.2.1
sum=29ec0ee09e296479fe7048c80980e8ef1d0684d0b0204c2b101dfea19f6725b9
# Debian removes sources that it has replaced; its archive has them all.
sources="http://deb.debian.org/debian/pool/main/c/criu https://snapshot.debian.org/archive/debian/20260101T000000Z/pool/main/c/criu"

is_new_enough() {
    case $("$1" --version 2>/dev/null | sed -n 's/^Version: //p') in
    [4-9].* | [1-9][0-9]*.*) return 0 ;;
    *) return 1 ;;
    esac
}

if is_new_enough "$into/criu" || is_new_enough criu; then
    exit 0
fi
"$(dirname "$0")/setup.sh" criu
mkdir -p "$into"
work=$(mktemp -d "$into/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
file=criu_$version.orig.tar.xz
for source in $sources; do
    curl -sSfL --retry 3 -o "$work/$file" "$source/$file" && break
done
echo "$sum  $work/$file" | sha256sum --quiet --check
tar -xf "$work/$file" -C "$work"
echo "criu: building $version"
make -C "$work/criu-$version" -j"$(nproc)" NO_GNUTLS=y criu >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    exit 1
}
cp "$work/criu-$version/criu/criu" "$into/criu.new"
mv "$into/criu.new" "$into/criu"
"$into/criu" --version
