#!/bin/sh
# Runs the fuzz targets one after another, each for SECONDS:
#
#     packaging/fuzz.sh SECONDS [TARGET]
#
# Stable Rust is enough: the compiler's coverage pass is part of stable Rust. Only the sanitizers are missing, and code without
# `unsafe` does not need sanitizers. Each target begins with the seeds (fuzz/seeds) and the inputs of earlier runs. New inputs go
# below the target directory (fuzz/corpus there); the seeds stay as they are.
#
# The script prints a line for each target: the name, the number of inputs, the seconds, and the number of inputs that reached
# something new. An input that violates a property is kept in fuzz/artifacts there, and the script prints the path; the remaining
# targets still run. OUTLIVE_FUZZ_SEED, a number, chooses the inputs: the same seed and corpus give the same inputs.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:${HOME:-/root}/.cargo/bin

usage() {
    echo "usage: packaging/fuzz.sh SECONDS [TARGET]" >&2
    exit 2
}

case ${1:-} in
'' | *[!0-9]*) usage ;;
esac
seconds=$1
all=$(sed -n 's/^name = "\(.*\)"$/\1/p' fuzz/Cargo.toml | grep -v '^outlive-fuzz$')
targets=${2:-$all}
for target in $targets; do
    [ -f "fuzz/fuzz_targets/$target.rs" ] || {
        # shellcheck disable=SC2086 # several words
        echo "fuzz: there is no target $target; there are:" $all >&2
        exit 2
    }
done

packaging/setup.sh fuzz
mkdir -p "${CARGO_TARGET_DIR:-target}/fuzz"
work=$(cd "${CARGO_TARGET_DIR:-target}/fuzz" && pwd)
# The program that makes the seeds runs by hand after a change of a format: it must still compile then.
(cd fuzz && CARGO_TARGET_DIR=$work exec cargo check --quiet --locked --example seeds)
host=$(rustc -vV | sed -n 's/^host: //p')
# The flags of cargo-fuzz, without the sanitizer. Arithmetic that overflows is a finding.
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1"
export RUSTFLAGS
bins=$(printf ' --bin %s' $targets)
# With --target, build scripts are compiled without these flags.
# shellcheck disable=SC2086 # several words
(cd fuzz && CARGO_TARGET_DIR=$work exec cargo build --quiet --release --locked --target "$host" $bins)

# Images are unpacked where no disk has to be waited for.
scratch=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "$work")/outlive-fuzz.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# A figure of libFuzzer's final statistics.
figure() {
    sed -n "s/^stat::$1: *//p" "$log"
}

failed=0
for target in $targets; do
    corpus=$work/corpus/$target
    artifacts=$work/artifacts/$target
    log=$work/$target.log
    mkdir -p "$corpus" "$artifacts"
    status=0
    TMPDIR=$scratch "$work/$host/release/$target" \
        -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=1 \
        ${OUTLIVE_FUZZ_SEED:+-seed="$OUTLIVE_FUZZ_SEED"} -artifact_prefix="$artifacts/" \
        "$corpus" "fuzz/seeds/$target" >"$log" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then
        found=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        tail -n 40 "$log" >&2
        echo "fuzz: $target fails (status $status) with the input ${found:-that is not known}; $log has all that was said" >&2
        failed=1
        continue
    fi
    ran=$(sed -n 's/^Done [0-9]* runs in \([0-9]*\) second.*/\1/p' "$log")
    echo "$target, $(figure number_of_executed_units) inputs, ${ran:-$seconds} s, $(figure new_units_added) new"
done
exit $failed
