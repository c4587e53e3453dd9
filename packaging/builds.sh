#!/bin/sh
# Installs what the programs of others need that `xtask builds` builds, from Debian.
set -eu
packages="autoconf automake libtool bison pkg-config curl xz-utils bzip2 tcl zlib1g-dev libevent-dev libncurses-dev libssl-dev libonig-dev"

missing=
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || {
    echo "builds: missing:$missing" "Run this as root, or install them by your own means." >&2
    exit 1
}
echo "builds: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q </dev/null
# shellcheck disable=SC2086 # a list of words
apt-get install -q -y --no-install-recommends $missing </dev/null
