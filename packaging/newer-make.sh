#!/bin/sh
# Builds GNU make 4.4 from Debian's source package into a directory ($1), which is to be neither in /tmp nor in a tree that is
# watched: Debian 12 has 4.3, and from 4.4 on a jobserver has a name. Half a minute.
set -eu
into=${1:?which directory?}
version=4.4.1
sum=3b16b00ea1079af9f8096bbc71ff7cc00c249fc6a862003da3c42308a0adb0fe
# Debian removes sources that it has replaced; its archive has them all.
sources="http://deb.debian.org/debian/pool/main/m/make-dfsg https://snapshot.debian.org/archive/debian/20260101T000000Z/pool/main/m/make-dfsg"

case $("$into/make" --version 2>/dev/null) in
"GNU Make $version"*) exit 0 ;;
esac
"$(dirname "$0")/setup.sh" newer-make
mkdir -p "$into"
work=$(mktemp -d "$into/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
file=make-dfsg_$version.orig.tar.xz
for source in $sources; do
    curl -sSfL --retry 3 -o "$work/$file" "$source/$file" && break
done
echo "$sum  $work/$file" | sha256sum --quiet --check
tar -xf "$work/$file" -C "$work"
echo "newer-make: building $version"
(
    cd "$work/make-$version"
    # Debian's copy has no documents, for which the makefiles ask.
    mkdir doc
    printf 'all:\n' >doc/Makefile.in
    touch doc/make.1
    ./configure --without-guile --disable-nls && make MAKEINFO=true
) >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    exit 1
}
cp "$work/make-$version/make" "$into/make.new"
mv "$into/make.new" "$into/make"
"$into/make" --version | head -n 1
