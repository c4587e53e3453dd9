#!/bin/sh
# Installs what it takes to build, test and show outlive, where it is missing: on Debian 12
# and its relatives. Looks at what is there rather than at package names, so that it is
# content with another distribution's tools, and runs apt-get only when something is missing.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin:${HOME:-/root}/.cargo/bin

build="gcc libc6-dev make pkg-config clang libelf-dev zlib1g-dev iproute2"
# nginx: Debian 12's has http_dav_module (PUT); other servers and tools are for tests and bench.
test="nginx curl lighttpd redis-server redis-tools memcached mosquitto mosquitto-clients ngircd socat python3 tcpdump ethtool wrk iperf3 nftables procps haproxy keepalived openssl lighttpd-mod-openssl python3-websockets python3-pyftpdlib vsftpd lftp nodejs ccache git"

# Is what a package is wanted for there?
has() {
    case $1 in
    libc6-dev) echo '#include <stdio.h>' | gcc -E -x c - ;;
    libelf-dev) pkg-config --exists libelf ;;
    zlib1g-dev) pkg-config --exists zlib ;;
    iproute2) command -v ip && command -v ss ;;
    nginx) nginx -V 2>&1 | grep -q -e http_dav_module ;;
    nftables) command -v nft ;;
    procps) command -v pgrep ;;
    mosquitto-clients) command -v mosquitto_sub && command -v mosquitto_pub ;;
    lighttpd-mod-openssl) test -e /usr/lib/lighttpd/mod_openssl.so ;;
    python3-websockets) /usr/bin/python3 -c 'import websockets' ;;
    python3-pyftpdlib) /usr/bin/python3 -c 'import pyftpdlib' ;;
    redis-tools) command -v redis-cli && command -v redis-benchmark ;;
    *) command -v "$1" ;;
    esac >/dev/null 2>&1
}

missing() {
    for package in $build $test; do
        has "$package" || printf ' %s' "$package"
    done
}

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

# Servers that are not there yet, and would start by themselves when they are installed and
# at each boot after that.
new_services() {
    for service in nginx lighttpd haproxy keepalived redis-server memcached mosquitto ngircd vsftpd; do
        command -v "$service" >/dev/null 2>&1 || printf ' %s' "$service"
    done
}

# invoke-rc.d(8) and deb-systemd-invoke(1) ask this file whether they may start a service.
policy=/usr/sbin/policy-rc.d

install_packages() {
    to_be_quiet=$(new_services)
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 130' INT TERM HUP
        printf '#!/bin/sh\n# Made by the setup of outlive while it installs packages.\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q </dev/null
    # shellcheck disable=SC2086 # a list of words
    apt-get install -q -y --no-install-recommends $1 </dev/null
    for service in $to_be_quiet; do
        if command -v "$service" >/dev/null 2>&1; then
            quiet_service "$service"
        fi
    done
}

# They are run by hand here, each in its own network namespace: none is to listen on this host.
quiet_service() {
    if [ -d /run/systemd/system ]; then
        systemctl --quiet stop "$1" || true
    fi
    if command -v systemctl >/dev/null 2>&1; then
        systemctl --quiet disable "$1" || true
    elif command -v update-rc.d >/dev/null 2>&1; then
        update-rc.d "$1" disable || true
    fi
}

check_rust() {
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    how="Get it from https://rustup.rs: curl -sSf https://sh.rustup.rs | sh -s -- -y"
    command -v cargo >/dev/null 2>&1 ||
        fail "no cargo: stable Rust $wanted or newer is needed." "$how"
    found=$(cargo --version | cut -d' ' -f2)
    [ "$(printf '%s\n' "$wanted" "${found%%-*}" | sort -V | head -n1)" = "$wanted" ] ||
        fail "this is Rust $found; $wanted or newer is needed." "With rustup: rustup update stable" "$how"
}

[ "$(uname -s)" = Linux ] || fail "outlive runs on Linux only."
list=$(missing)
if [ -n "$list" ]; then
    command -v apt-get >/dev/null 2>&1 ||
        fail "missing:$list (names of Debian packages)." \
            "This is not Debian or a relative: install what contains them by your own means."
    [ "$(id -u)" = 0 ] ||
        fail "missing:$list" "Run this as root, or: apt-get install$list"
    echo "setup: installing$list"
    install_packages "$list"
    list=$(missing)
    [ -z "$list" ] || fail "installed, but still not usable:$list"
fi
check_rust
