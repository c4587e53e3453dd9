#!/bin/sh
# Installs what the bench compares `outlive make` with: tup and what it mounts file systems with from Debian, and watchexec,
# which Debian does not have, from crates.io into a directory ($1). Some minutes the first time.
set -eu
into=${1:?which directory?}
version=2.8.0
cargo=${CARGO:-cargo}

"$(dirname "$0")/setup.sh" rivals
case $("$into/bin/watchexec" --version 2>/dev/null) in
"watchexec $version"*) exit 0 ;;
esac
echo "rivals: building watchexec $version"
CARGO_TARGET_DIR="$into/build" "$cargo" install --quiet --locked --version "$version" --root "$into" watchexec-cli
rm -rf "$into/build"
"$into/bin/watchexec" --version
