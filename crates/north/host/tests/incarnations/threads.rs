//! Programs whose helper threads wait with a timeout.

use north_host::Memory;

use crate::incarnation::Incarnation;

/// Wakes helpers, which need the interpreter's lock, and keeps the lock for longer than the helpers' timeout. Then a
/// call releases the lock, and the program counts the work of the helpers.
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

/// The same with a semaphore: the helper's wait times out before the semaphore is posted.
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

/// All incarnations of the program print this line.
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

/// The first thread wakes the helpers after a different time in each incarnation.
#[test]
fn late_wakeup_of_helper_is_in_time() {
    for (helpers, expected) in [("1", "1 2 3 4\n"), ("2", "2 4 6 8\n")] {
        assert_said(&LOCK.replace("HELPERS", helpers), expected);
    }
}

/// The helper finds the semaphore that the helper had given up.
#[test]
fn late_semaphore_post_reaches_helper() {
    assert_said(SEMAPHORE, "1 0 2 0 3 0 4 0\n");
}
