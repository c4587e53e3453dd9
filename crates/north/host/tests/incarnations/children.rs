//! Programs with children.

use std::{
    collections::BTreeSet,
    fs,
    io::BufRead as _,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use north_abi::layout::Fate;
use north_host::Memory;
use rustix::process::{Pid, Signal, kill_process};

use crate::incarnation::Incarnation;

/// Waits for a child without reading the status.
const WAITS: &str = r#"
import ctypes, os, time
child = os.fork()
while child == 0:
    time.sleep(0.1)
print(child, flush=True)
every = ctypes.CDLL(None)
while every.waitpid(-1, None, os.WNOHANG) != child:
    time.sleep(0.01)
while True:
    print("heard", flush=True)
    time.sleep(0.01)
"#;

/// A replay does not start the child again, because the parent would not wait for the end a second time.
#[test]
fn killed_child_is_detected_without_wait() {
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, WAITS, false);
    let child: i32 = incarnation.line().trim().parse().expect("a number");
    memory.is_ending(); // without this the program would wait for the kill
    let child = Pid::from_raw(child).expect("a process");
    kill_process(child, Signal::KILL).expect("killed");
    assert_eq!(incarnation.line(), "heard\n");
    assert!(memory.page().processes.0[1].has(Fate::Executes));
    incarnation.end_all();
}

/// Has a long-lived child, and more children that end at once, until a child has a process id above the range of the
/// kernel.
const NUMBERS: &str = r#"
import os, time
first = os.fork()
while first == 0:
    time.sleep(0.1)
while not os.path.exists("PLACE"):
    print(first, flush=True)
    time.sleep(0.01)
for _ in range(20000):
    child = os.fork()
    if child == 0:
        os._exit(os.getpid() % 100)
    if child == first:
        print("the same", flush=True)
        break
    told, status = os.waitpid(child, 0)
    if (told, os.WEXITSTATUS(status)) != (child, child % 100):
        print("a stranger", flush=True)
        break
    if child > 1 << 22:
        print("another", flush=True)
        break
else:
    print("none", flush=True)
while True:
    time.sleep(0.1)
"#;

/// The kernel may give a new child the process id of a child of an earlier incarnation.
#[test]
fn replayed_children_have_distinct_pids() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("now");
    let program = NUMBERS.replace("PLACE", place.to_str().expect("a name"));
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, &program, false);
    let first: u32 = incarnation.line().trim().parse().expect("a number");
    incarnation.end_all();
    memory.to_be_replayed(&mut []).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 1]));
    let mut incarnation = Incarnation::begin(&memory, &program, false);
    incarnation.replays(&memory);
    incarnation.handover.go().expect("gone on");
    fs::write(&place, "").expect("a file");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let before = (first - 1).to_string();
            while !is_over.load(Ordering::Relaxed) {
                fs::write("/proc/sys/kernel/ns_last_pid", &before).expect("what comes next");
            }
        });
        let before = format!("{first}\n");
        let mut told = before.clone();
        while told == before {
            told.clear();
            incarnation.stdout.read_line(&mut told).expect("a line");
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(told, "another\n");
    });
    incarnation.end_all();
}
