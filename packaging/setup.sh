#!/bin/sh
# Installs missing programs and libraries of the named sets, on Debian 12 and relatives: packaging/setup.sh SET...
# The script looks for programs rather than for package names: another distribution's tools work, too. The script runs apt-get only
# when something is missing.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin:${HOME:-/root}/.cargo/bin

# Programs that cargo runs, and libraries of a release build; binutils is for packaging/symbols.sh.
build="gcc libc6-dev make pkg-config clang libelf-dev zlib1g-dev binutils"
# Hosts in network namespaces (testing/lab). `outlive` itself runs ip and tc, too.
lab="iproute2 ethtool"
# nginx: Debian 12's has http_dav_module (PUT).
servers="nginx curl redis-server redis-tools mosquitto mosquitto-clients lighttpd wget nftables"
# The other servers and clients of the pool.
demo="$build $lab $servers apache2 caddy aria2 ffmpeg apt dpkg python3 python3-pip"
# Sources of other programs, and the build tools for these programs.
builds="$build curl ca-certificates xz-utils bzip2 autoconf automake libtool bison tcl libevent-dev libncurses-dev libssl-dev libonig-dev"

packages_of() {
    case $1 in
    build | msrv) echo "$build" ;;
    demo) echo "$demo" ;;
    test) echo "$build $lab $servers tcpdump procps perl-base python3 python3-websockets python3-pyftpdlib lighttpd-mod-openssl openssl" \
        "memcached etcd-server iputils-ping ngircd socat haproxy vsftpd lftp nodejs ccache git zsh fish" ;;
    bench) echo "$build $lab $servers $builds tcpdump wrk iperf3 haproxy keepalived openssl git netcat-openbsd mbuffer uftp" ;;
    paper) echo "$build $lab tcpdump lighttpd nginx redis-server redis-tools wrk" ;;
    # The suite looks for child processes with pgrep.
    redis-suite) echo "$build $lab curl ca-certificates redis-server tcl procps" ;;
    # Tests run in the machines among this host's files.
    kernels) echo "$build $lab qemu-system-x86 busybox-static xz-utils dpkg apt debian-archive-keyring curl python3" ;;
    builds) echo "$builds" ;;
    criu) echo "gcc libc6-dev make pkg-config curl ca-certificates xz-utils python3 libprotobuf-c-dev libprotobuf-dev protobuf-c-compiler" \
        "protobuf-compiler libnl-3-dev libcap-dev libnet1-dev uuid-dev libbsd-dev" ;;
    newer-make) echo "gcc libc6-dev make curl ca-certificates xz-utils" ;;
    rivals) echo "gcc libc6-dev tup fuse3" ;;
    # cargo-deny fetches the database of advisories with git.
    deny) echo "gcc libc6-dev git ca-certificates" ;;
    # libFuzzer is C++.
    fuzz) echo "$build g++" ;;
    *) return 1 ;;
    esac
}

usage() {
    cat >&2 <<'EOF'
usage: packaging/setup.sh SET...
  build        a release build of outlive and of the programs in tools/
  demo         make demo
  test         make test, make soak
  bench        make bench (its other parts: rivals, criu)
  paper        make paper
  redis-suite  make redis-suite
  kernels      make kernels
  builds       make builds
  msrv         make msrv
  deny         make deny
  fuzz         make fuzz
  criu         CRIU, from source
  newer-make   GNU make 4.4, from source
  rivals       tup, and watchexec from source
A set installs all that its row needs; demo, test, bench and others contain build.
EOF
    exit 2
}

# Is the thing there for which a package is wanted?
has() {
    case $1 in
    libc6-dev) echo '#include <stdio.h>' | gcc -E -x c - ;;
    binutils) command -v objcopy && command -v strip ;;
    iproute2) command -v ip && command -v ss && command -v tc ;;
    nginx) nginx -V 2>&1 | grep -q -e http_dav_module ;;
    nftables) command -v nft ;;
    # The shell has a builtin kill.
    procps) command -v pgrep && env kill -l ;;
    perl-base) command -v perl ;;
    xz-utils) command -v xz ;;
    nodejs) command -v node ;;
    etcd-server) command -v etcd ;;
    iputils-ping) command -v ping ;;
    aria2) command -v aria2c ;;
    netcat-openbsd) command -v nc ;;
    mosquitto-clients) command -v mosquitto_sub && command -v mosquitto_pub ;;
    lighttpd-mod-openssl) test -e /usr/lib/lighttpd/mod_openssl.so ;;
    # Tests name this python3: another python3 may stand earlier in PATH.
    python3) test -x /usr/bin/python3 ;;
    python3-pip) /usr/bin/python3 -m pip --version ;;
    python3-websockets) /usr/bin/python3 -c 'import websockets' ;;
    python3-pyftpdlib) /usr/bin/python3 -c 'import pyftpdlib' ;;
    redis-tools) command -v redis-cli && command -v redis-benchmark ;;
    qemu-system-x86) command -v qemu-system-x86_64 ;;
    # The machines start from it alone.
    busybox-static) ldd "$(command -v busybox)" 2>&1 | grep -q -e 'not a dynamic' -e 'statically' ;;
    dpkg) command -v dpkg-deb ;;
    apt) command -v apt-get && command -v apt-cache ;;
    debian-archive-keyring) test -e /usr/share/keyrings/debian-archive-keyring.gpg ;;
    automake) command -v automake && command -v aclocal ;;
    autoconf) command -v autoreconf ;;
    libtool) command -v libtoolize ;;
    tcl) command -v tclsh ;;
    ca-certificates) test -e /etc/ssl/certs/ca-certificates.crt ;;
    fuse3) command -v fusermount3 ;;
    protobuf-c-compiler) command -v protoc-c ;;
    protobuf-compiler) command -v protoc ;;
    libelf-dev) pkg-config --exists libelf ;;
    zlib1g-dev) pkg-config --exists zlib ;;
    libevent-dev) pkg-config --exists libevent ;;
    libncurses-dev) pkg-config --exists ncurses ;;
    libssl-dev) pkg-config --exists openssl ;;
    libonig-dev) pkg-config --exists oniguruma ;;
    libprotobuf-c-dev) pkg-config --exists libprotobuf-c ;;
    libprotobuf-dev) pkg-config --exists protobuf ;;
    libnl-3-dev) pkg-config --exists libnl-3.0 ;;
    libcap-dev) pkg-config --exists libcap ;;
    libnet1-dev) command -v libnet-config ;;
    uuid-dev) pkg-config --exists uuid ;;
    libbsd-dev) pkg-config --exists libbsd ;;
    *) command -v "$1" ;;
    esac >/dev/null 2>&1
}

# $1: packages, each of which may be named by several sets.
missing() {
    # shellcheck disable=SC2086 # a list of words
    for package in $(printf '%s\n' $1 | sort -u); do
        has "$package" || printf ' %s' "$package"
    done
}

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

# Missing servers that would start on installation and at each boot after that.
new_services() {
    for service in nginx apache2 lighttpd caddy haproxy keepalived redis-server memcached mosquitto ngircd vsftpd; do
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

# Tests and demo run each server by hand in a network namespace: none is to listen on this host.
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

# rustup's cargo is the version of rust-toolchain.toml. A distribution's cargo works if that version is not older than the MSRV.
check_rust() {
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
    how="Get it from https://rustup.rs: curl -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal"
    with_rustup="With rustup: rustup toolchain install $pinned --profile minimal --component rustfmt --component clippy"
    command -v cargo >/dev/null 2>&1 ||
        fail "no cargo: Rust $wanted or newer is needed ($pinned is what we use)." "$how"
    # The first cargo of a new checkout makes rustup install the toolchain.
    version=$(cargo --version) || fail "cargo does not run." "$with_rustup"
    found=$(printf '%s\n' "$version" | sed -n 's/^cargo \([0-9.]*\).*/\1/p')
    [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n1)" = "$wanted" ] ||
        fail "this is Rust $found; $wanted or newer is needed." "$with_rustup" "$how"
    # The build of the data plane formats a generated file, unless there is no rustfmt at all; rustup has a rustfmt always,
    # which fails where the toolchain has none.
    ! command -v rustfmt >/dev/null 2>&1 || rustfmt --version >/dev/null 2>&1 ||
        fail "rustfmt does not run." "With rustup: rustup component add rustfmt"
}

# Tools of Rust that only the checks need.
check_rust_tools() {
    for tool in fmt clippy; do
        cargo "$tool" --version >/dev/null 2>&1 ||
            fail "there is no cargo $tool." "With rustup: rustup component add rustfmt clippy"
    done
}

[ $# -gt 0 ] || usage
wanted=
for set in "$@"; do
    wanted="$wanted $(packages_of "$set")" || {
        echo "setup: there is no set $set" >&2
        usage
    }
done
[ "$(uname -s)" = Linux ] || fail "outlive runs on Linux only."
list=$(missing "$wanted")
if [ -n "$list" ]; then
    command -v apt-get >/dev/null 2>&1 ||
        fail "missing:$list (names of Debian packages)." \
            "This is not Debian or a relative: install what contains them by your own means."
    [ "$(id -u)" = 0 ] ||
        fail "missing:$list" "Run this as root, or: apt-get install$list"
    echo "setup: installing$list"
    install_packages "$list"
    list=$(missing "$wanted")
    [ -z "$list" ] || fail "installed, but still not usable:$list"
fi
check_rust
case " $* " in
*" test "*) check_rust_tools ;;
esac
