//! Programs whose helper threads wait for something no longer than for a while.

use north_host::Memory;

use crate::incarnation::Incarnation;

/// Wakes helpers, which want the interpreter's lock, and keeps that for longer than they wait before they ask for it.
/// Then a call gives it to them, and how much they have done is looked at.
const LOCK: &str = r#"
import os, sys, threading, time
sys.setswitchinterval(1e-4)
done, wakes, nowhere = [], [threading.Event() for _ in range(HELPERS)], os.open("/dev/null", os.O_WRONLY)
def help(wake):
    while True:
        wake.wait()
        wake.clear()
        done.append(None)
for wake in wakes:
    threading.Thread(target=help, args=[wake], daemon=True).start()
said = []
for _ in range(4):
    for wake in wakes:
        wake.set()
    for _ in range(1000000):
        pass
    os.write(nowhere, b"a call")
    said.append(len(done))
while True:
    print(*said, flush=True)
    time.sleep(0.01)
"#;

/// The same by a semaphore, for which the helper waits in vain before it is told that it can have it.
const SEMAPHORE: &str = r#"
import os, threading, time
done, in_vain, work, nowhere = 0, 0, threading.Lock(), os.open("/dev/null", os.O_WRONLY)
def help():
    global done, in_vain
    while True:
        if work.acquire(timeout=0.001):
            done += 1
        else:
            in_vain += 1
work.acquire()
threading.Thread(target=help, daemon=True).start()
said = []
for _ in range(4):
    before = in_vain
    for _ in range(1000000):
        pass
    work.release()
    os.write(nowhere, b"a call")
    said += done, in_vain - before
while True:
    print(*said, flush=True)
    time.sleep(0.01)
"#;

/// Each incarnation of it says this.
fn assert_said(program: &str, expected: &str) {
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, program, false);
    assert_eq!(incarnation.line(), expected, "the first one");
    for number in 2..=4 {
        drop(incarnation);
        memory.to_be_replayed(&mut []).expect("memory");
        incarnation = Incarnation::begin(&memory, program, false);
        incarnation.replays(&memory);
        incarnation.handover.go().expect("gone on");
        assert_eq!(incarnation.line(), expected, "incarnation {number}");
    }
}

/// How long the first thread needs until it wakes them is another time in each incarnation.
#[test]
fn late_wakeup_of_helper_is_in_time() {
    for (helpers, expected) in [("1", "1 2 3 4\n"), ("2", "2 4 6 8\n")] {
        assert_said(&LOCK.replace("HELPERS", helpers), expected);
    }
}

/// And find what they had given up.
#[test]
fn late_semaphore_post_reaches_helper() {
    assert_said(SEMAPHORE, "1 0 2 0 3 0 4 0\n");
}
