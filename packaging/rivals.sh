#!/bin/sh
# Installs what the bench compares `outlive make` with: tup and what it mounts file systems with from Debian, and watchexec,
# which Debian does not have, from crates.io into a directory ($1). Some minutes the first time.
set -eu
into=${1:?which directory?}
version=2.8.0
cargo=${CARGO:-cargo}

missing=
command -v tup >/dev/null 2>&1 || missing=tup
command -v fusermount3 >/dev/null 2>&1 || missing="$missing fuse3"
if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || {
        echo "rivals: missing: $missing" "Run this as root, or install them by your own means." >&2
        exit 1
    }
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q </dev/null
    # shellcheck disable=SC2086 # a list of words
    apt-get install -q -y --no-install-recommends $missing </dev/null
fi
case $("$into/bin/watchexec" --version 2>/dev/null) in
"watchexec $version"*) exit 0 ;;
esac
echo "rivals: building watchexec $version"
CARGO_TARGET_DIR="$into/build" "$cargo" install --quiet --locked --version "$version" --root "$into" watchexec-cli
rm -rf "$into/build"
"$into/bin/watchexec" --version
