#!/bin/sh
# Holds the third-party crates against deny.toml: licences, advisories, banned crates, sources; for the workspace and for fuzz/.
# Installs cargo-deny into the target directory, once (some five minutes on two cores).
#
# The database of advisories is a git repository at GitHub. Where that is out of reach, the copy that was fetched last is used, and
# fails the check when the copy is older than 90 days. Where there is no copy, the script says that no advisory was looked at.
set -eu
cd "$(dirname "$0")/.."
version=0.20.2
into=$(realpath -m "${CARGO_TARGET_DIR:-target}")/deny
cargo=${CARGO:-cargo}
PATH=$into/bin:$PATH:${HOME:-/root}/.cargo/bin
databases=${CARGO_HOME:-${HOME:-/root}/.cargo}/advisory-dbs

packaging/setup.sh deny
case $("$into/bin/cargo-deny" --version 2>/dev/null) in
"cargo-deny $version") ;;
*)
    echo "deny: building cargo-deny $version"
    CARGO_TARGET_DIR="$into/build" nice "$cargo" install --quiet --locked --version "$version" --root "$into" cargo-deny
    rm -rf "$into/build"
    ;;
esac

# "offline" is about the database: crates that are missing here are fetched first.
for lock in . fuzz; do
    "$cargo" fetch --quiet --locked --manifest-path "$lock/Cargo.toml"
done
checks="advisories bans licenses sources"
offline=
missing=
if ! why=$("$into/bin/cargo-deny" --locked fetch db 2>&1); then
    if ls -d "$databases"/*/.git >/dev/null 2>&1; then
        offline=--offline
    else
        missing=yes
        checks="bans licenses sources"
    fi
fi

status=0
for lock in . fuzz; do
    echo "deny: $lock/Cargo.lock"
    # Licences that only the other lock file has are no mistake here.
    unused=
    [ "$lock" = . ] || unused="--allow license-not-encountered"
    # shellcheck disable=SC2086 # lists of words
    "$into/bin/cargo-deny" --locked $offline --manifest-path "$lock/Cargo.toml" --config deny.toml \
        check --hide-inclusion-graph $unused $checks || status=1
done
if [ -n "$missing" ]; then
    echo "deny: ADVISORIES WERE NOT LOOKED AT: their database is not here, and fetching it failed:"
elif [ -n "$offline" ]; then
    echo "deny: the database of advisories is the one that was fetched last; fetching it failed:"
else
    exit $status
fi
printf '%s\n' "$why" | tail -n 3 | sed 's/^/deny:   /'
exit $status
