#!/bin/sh
# Runs the fuzz targets, each for so many seconds, one after another:
#
#     packaging/fuzz.sh SECONDS [TARGET]
#
# Stable Rust is enough: the compiler's pass that notes what an input reaches is part of it, only the sanitizers, which code without
# `unsafe` does not need, are not. Each target begins with its seeds (fuzz/seeds) and with what earlier runs have found. What is
# found goes below the target directory (fuzz/corpus there); the seeds stay as they are.
#
# For each target one line is printed: its name, how many inputs were run, in how many seconds, and how many of them reached
# something new. An input for which a property does not hold is kept in fuzz/artifacts there, and its path is printed; the other
# targets are run all the same. OUTLIVE_FUZZ_SEED, a number, chooses the inputs: the same ones from the same corpus.
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
host=$(rustc -vV | sed -n 's/^host: //p')
# As cargo-fuzz has it, but for the sanitizer. Arithmetic that overflows is a finding.
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1"
export RUSTFLAGS
bins=$(printf ' --bin %s' $targets)
# With --target, these flags are not those of build scripts.
# shellcheck disable=SC2086 # several words
(cd fuzz && CARGO_TARGET_DIR=$work exec cargo build --quiet --release --locked --target "$host" $bins)

# Images are unpacked where no disk has to be waited for.
scratch=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "$work")/outlive-fuzz.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# What libFuzzer says of its run at its end.
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
