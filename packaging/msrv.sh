#!/bin/sh
# Compiles everything, tests too, with the oldest Rust that is supported: `rust-version` in Cargo.toml. rustup fetches that Rust,
# once. The compiled files go into a separate directory under the target directory.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:${HOME:-/root}/.cargo/bin
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
case $oldest in
*.*.*) toolchain=$oldest ;;
*) toolchain=$oldest.0 ;;
esac
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/msrv
export CARGO_TARGET_DIR

packaging/setup.sh msrv
command -v rustup >/dev/null 2>&1 || {
    echo "msrv: no rustup, so Rust $toolchain cannot be fetched: nothing was checked" >&2
    exit 1
}
# The build of the data plane formats a generated file: rustfmt is needed, too.
rustup run "$toolchain" rustfmt --version >/dev/null 2>&1 ||
    rustup toolchain install "$toolchain" --profile minimal --component rustfmt --no-self-update
# A cargo that runs this script has chosen a toolchain for all child processes, and the variable CARGO would name that toolchain's
# cargo.
unset RUSTUP_TOOLCHAIN CARGO
exec rustup run "$toolchain" cargo check --locked --workspace --all-targets "$@"
