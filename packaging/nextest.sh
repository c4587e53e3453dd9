#!/bin/sh
# Installs cargo-nextest, which runs each test in a separate process, where cargo has none or an older version.
# Not optimised: it waits for tests, and the build takes a minute on two cores rather than three. Once for a machine:
# the program is in cargo's own directory.
set -eu
version=0.9.114

# Whether the wanted version is the older of the two.
is_new_enough() {
    found=$(cargo nextest --version 2>/dev/null | sed -n 's/^cargo-nextest \([0-9.]*\).*/\1/p')
    [ -n "$found" ] && [ "$(printf '%s\n' "$version" "$found" | sort -V | head -n1)" = "$version" ]
}

is_new_enough && exit 0
echo "nextest: building cargo-nextest $version"
export CARGO_PROFILE_DEV_DEBUG=false
cargo install --quiet --locked --debug --version "$version" \
    --no-default-features --features default-no-update cargo-nextest
