# Among this machine's files, on the kernel that is tested: see guest.rs. What is found is printed
# in lines that begin with @@.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export TMPDIR=/run/tmp HOME=/run/tmp RUST_BACKTRACE=0
cd /run/tmp || exit
uname -r

# A protected server with the programs attached in one way: a connection survives its death.
attached() {
    run=/run/tmp/$1
    mkdir -p "$run"
    "@OUTLIVE@" serve --json --attach "$1" --name "$1" --address "127.0.0.1:$2" --run-dir "$run" -- \
        "@SERVER@" echo "127.0.0.1:$2" >"$run/log" 2>&1 &
    serve=$!
    tries=0
    until grep -q '"event":"protecting"' "$run/log"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 200 ] || ! kill -0 "$serve" 2>/dev/null; then
            why=$(tail -n 3 "$run/log" | tr '\n' ' ')
            # TCX came with Linux 6.6; clsact is older than any kernel here.
            if [ "$1" = tcx ] && [ "$(printf '%s\n' 6.6 "$(uname -r)" | sort -V | head -n 1)" != 6.6 ]; then
                echo "@@ tcx missing"
            else
                echo "@@ $1 no"
                echo "@@ why $1: $why"
            fi
            kill "$serve" 2>/dev/null
            return
        fi
        sleep 0.05
    done
    python3 - "$2" "$run/log" <<'PYTHON'
import json, os, signal, socket, sys, time
port, log = int(sys.argv[1]), sys.argv[2]
client = socket.create_connection(("127.0.0.1", port))
client.settimeout(20)
def echo(text):
    client.sendall(text)
    got = b""
    while len(got) < len(text):
        part = client.recv(100)
        if not part:
            sys.exit("the connection has ended")
        got += part
    if got != text:
        sys.exit(f"{text!r} came back as {got!r}")
for n in range(2):
    echo(b"before %d" % n)
    events = [json.loads(line) for line in open(log) if line.startswith("{")]
    pid = [e["pid"] for e in events if e["event"] in ("started", "restarted")][-1]
    time.sleep(1.1)
    os.kill(pid, signal.SIGKILL)
    echo(b"after %d" % n)
PYTHON
    if [ $? = 0 ]; then
        echo "@@ $1 yes"
    else
        echo "@@ $1 no"
        echo "@@ why $1: $(tail -n 3 "$run/log" | tr '\n' ' ')"
    fi
    kill "$serve" && wait "$serve"
}

if "@OUTLIVE@" check >/run/tmp/check 2>&1; then
    echo "@@ loads yes"
else
    echo "@@ loads no"
    echo "@@ why $(grep FAIL /run/tmp/check | tr '\n' ' ')"
    # What the kernel has against the programs, at its end.
    OUTLIVE_LOG=debug "@OUTLIVE@" check 2>&1 | grep -v FAIL | tail -n 60
    exit
fi
attached tcx 8001
attached clsact 8002

# Tests and their failures: counted NAME PROGRAM ARGUMENT...
counted() {
    name=$1
    shift
    "$@" >"/run/tmp/$name" 2>&1
    echo "@@ $name passed $(grep -c '^test .* ok$' "/run/tmp/$name") failed $(grep -c '^test .* FAILED$' "/run/tmp/$name")"
    grep '^test .* FAILED$' "/run/tmp/$name" | sed 's/^/@@ why /'
    # The first lines of each failure: the events of a serve are among them.
    grep -a -A 25 '^thread .* panicked' "/run/tmp/$name" | head -n 120 | sed 's/^/@@ why /'
}

# The hashes of the object's instructions do not depend on the kernel, and the guest's file system takes no new snapshot.
counted packets "@PACKETS@" --test-threads=2 --skip instructions:: "@FILTER@"

export OUTLIVE_BIN="@OUTLIVE@"
OUTLIVE_STACKED=all counted stacked "@STACKED@" --test-threads=1 "@FILTER@"

if [ "@SECONDS@" != 0 ]; then
    OUTLIVE_LOAD_SECONDS=@SECONDS@ counted load "@LOAD@" --test-threads=2 --show-output
    grep -a '^load: .* kills' /run/tmp/load | sed 's/^load: /@@ work /'
fi
