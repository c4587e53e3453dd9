#!/bin/sh
# 512 MiB over a link that loses 1 % of the frames; the receiver is killed twice. As root:
#
#     testing/e2e/accept/blast.sh target/release/outlive
#
# Ends with 0 if the file is equal, each attempt went on with the parts that were there, and no unfinished file is left.
set -eu
outlive=$(realpath "${1:?the program outlive}")
work=$(mktemp -d -p /dev/shm)
cd "$work"
# The labs of this script are in a directory of their own.
export OUTLIVE_LAB_DIR="$work/labs"
end() {
    "$outlive" lab down >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap end EXIT

receive() {
    "$outlive" lab exec b -- "$outlive" receive in --listen 10.0.0.2:7601 --key-file keys >>said 2>&1 &
}

# KiB of the unfinished file.
arrived() {
    size=$(du -sk in/.outlive-partial 2>/dev/null | cut -f1)
    echo "${size:-0}"
}

mkdir in
(umask 077 && "$outlive" key >keys)
head -c 512M /dev/urandom >file
"$outlive" lab up --hosts a,b >/dev/null
"$outlive" lab loss b 1 >/dev/null
receive
"$outlive" lab exec a -- "$outlive" send file 10.0.0.2:7601 --key-file keys --json 2>events &
sender=$!
for least in 160000 320000; do
    while [ "$(arrived)" -lt $least ]; do
        kill -0 $sender
        sleep 0.05
    done
    "$outlive" lab kill b outlive >/dev/null
    receive
done
wait $sender
cmp file in/file
[ "$(ls -A in)" = file ]
[ "$(grep -c '"event":"accepted"' events)" = 3 ]
grep '"event":"done"' events
