#!/bin/sh
# Moves the symbols of a program that cargo has built into a separate file: packaging/symbols.sh target/release/outlive
# strips the program and leaves outlive.debug, where gdb and the program's own backtraces find function names and lines.
# A second call changes no file.
#
# Cargo keeps the program twice, as hard links to the same file: target/release/outlive and target/release/deps/outlive-HASH.
# `cargo build` makes the first from the second whenever the two are different files: therefore both names get the stripped file. The
# file keeps the time of the build: cargo compares times to find stale files.
set -eu
program=${1:?usage: packaging/symbols.sh BINARY}
debug=$program.debug

# The build ID is the linker's hash of the program; strip and objcopy keep the ID.
build_id() {
    readelf --notes "$1" 2>/dev/null | sed -n 's/.*Build ID: //p'
}

has_section() {
    readelf --section-headers --wide "$1" | grep -q -F " $2 "
}

fail() {
    printf 'symbols: %s\n' "$@" >&2
    exit 1
}

[ -f "$program" ] || fail "there is no $program"
id=$(build_id "$program")
[ -n "$id" ] || fail "$program has no build ID: its symbols could not be told from those of another build"

# The names under which cargo keeps the file: hard links, or copies on a file system without hard links.
originals=$(find "$(dirname "$program")/deps" -maxdepth 1 -type f -name "$(basename "$program" | tr - _)-*" \
    ! -name '*.*' 2>/dev/null || true)
twins=
for original in $originals; do
    if [ "$(build_id "$original")" = "$id" ]; then
        twins="$twins $original"
    fi
done

if has_section "$program" .gnu_debuglink; then
    [ "$(build_id "$debug")" = "$id" ] ||
        # shellcheck disable=SC2086 # a list of words
        fail "$program has no symbols any more, and those in $debug are not its own." \
            "To build it again: rm$(printf ' %s' $program $twins), then make build"
    exit 0
fi

trap 'rm -f "$debug.new" "$program.new"' EXIT
trap 'exit 130' INT TERM HUP
# The symbols first: a program without them is never there alone.
objcopy --only-keep-debug "$program" "$debug.new"
chmod a-x "$debug.new"
mv "$debug.new" "$debug"
objcopy --strip-all --add-gnu-debuglink="$debug" "$program" "$program.new"
touch -r "$program" "$program.new"
# By renaming, since the old file may be running.
for twin in $twins; do
    ln -f "$program.new" "$twin" 2>/dev/null || cp -p "$program.new" "$twin"
done
mv "$program.new" "$program"
