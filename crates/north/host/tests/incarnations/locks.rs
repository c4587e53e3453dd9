//! Programs that lock files.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::Path,
    thread,
    time::Duration,
};

use north_abi::{Call, Records};
use north_host::Memory;
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};

use crate::incarnation::Incarnation;

/// The parent has the lock first, then the child, which keeps the lock. The parent reaches its lock later than the
/// child.
const ONE_AFTER_ANOTHER: &str = r#"
import fcntl, os, time
child = os.fork()
file = open("PLACE", "r+")
if child == 0:
    while not os.path.exists("PLACE.next"):
        time.sleep(0.01)
    fcntl.lockf(file, fcntl.LOCK_EX)
    while True:
        print("locked", flush=True)
        time.sleep(0.01)
for _ in range(20000000):
    pass
fcntl.lockf(file, fcntl.LOCK_EX)
fcntl.lockf(file, fcntl.LOCK_UN)
print("had it", flush=True)
while True:
    time.sleep(0.1)
"#;

/// Locks files in all ways, unlocks some parts, and is refused one lock.
const IN_EACH_WAY: &str = r#"
import fcntl, os, struct, time
def begin(name):
    return open("PLACE" + name, "w+")
def lock(file, command, kind, start, length):
    fcntl.fcntl(file, command, struct.pack("hhqqi", kind, os.SEEK_SET, start, length, 0))
whole = open("PLACE")
try:
    fcntl.flock(whole, fcntl.LOCK_EX | fcntl.LOCK_NB)
    said = "free"
except BlockingIOError:
    said = "taken"
part = begin("part")
fcntl.lockf(part, fcntl.LOCK_EX, 100)
fcntl.lockf(part, fcntl.LOCK_UN, 20, 40)
fcntl.lockf(part, fcntl.LOCK_SH, 30, 50)
part.write("what follows is counted from here")
part.flush()
fcntl.lockf(part, fcntl.LOCK_EX, 5, 200, os.SEEK_CUR)
by_c = begin("c")
os.lockf(by_c.fileno(), os.F_LOCK, 7)
try:
    os.lockf(by_c.fileno(), os.F_ULOCK, -1)
except OSError:
    said += ", refused"
shared = begin("shared")
lock(shared, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, 10, 0)
lock(shared, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 20, 5)
child_has = begin("child")
fcntl.flock(child_has, fcntl.LOCK_EX)
child = os.fork()
if child == 0:
    own = begin("own")
    fcntl.lockf(own, fcntl.LOCK_EX)
    while True:
        time.sleep(0.1)
child_has.close()
for close, name in [(True, "closed"), (False, "kept")]:
    file = begin(name)
    other = os.dup(file.fileno())
    fcntl.flock(file, fcntl.LOCK_SH)
    file.close()
    if close:
        os.close(other)
gone = begin("gone")
fcntl.lockf(gone, fcntl.LOCK_EX)
os.close(os.open("PLACEgone", os.O_RDONLY))
found = fcntl.fcntl(part, fcntl.F_GETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
said += [", nobody's", ", somebody's"][struct.unpack("hhqqi", found)[0] != fcntl.F_UNLCK]
while True:
    print(said, flush=True)
    time.sleep(0.01)
"#;

/// The program, with the path of this file.
fn about(program: &str, place: &Path) -> String {
    fs::write(place, "").expect("a file");
    program.replace("PLACE", place.to_str().expect("a name"))
}

/// The next incarnation, after the replay.
fn again(memory: &Memory, program: &str) -> Incarnation {
    memory.to_be_replayed(&mut []).expect("memory");
    let mut incarnation = Incarnation::begin(memory, program, false);
    incarnation.replays(memory);
    incarnation
}

/// The content of `/proc/locks` in one read (the kernel returns at most a page). The offset of a second read counts
/// locks, and locks of other tests come and go, so a lock could be missed.
fn all_locks() -> String {
    let mut piece = [0; 1 << 16];
    let mut locks = File::open("/proc/locks").expect("all");
    let length = locks.read(&mut piece).expect("all");
    String::from_utf8_lossy(&piece[..length]).into_owned()
}

/// Locks of the files in a directory: kind and range.
fn locked(directory: &Path) -> BTreeSet<String> {
    let inodes: Vec<String> = fs::read_dir(directory)
        .expect("it")
        .map(|file| format!(":{}", file.expect("a file").metadata().expect("it").ino()))
        .collect();
    let all = all_locks();
    all.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, kind, _, access, _, file, start, end] = words[..] else {
                return None; // a waiting lock
            };
            let is_its = inodes.iter().any(|inode| file.ends_with(inode.as_str()));
            is_its.then(|| [kind, access, file, start, end].join(" "))
        })
        .collect()
}

/// A process that has the lock at the end of its record waits for the other processes, which must not wait for the
/// lock.
#[test]
fn replayed_lock_does_not_wait() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("file");
    let program = about(ONE_AFTER_ANOTHER, &place);
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, &program, false);
    assert_eq!(incarnation.line(), "had it\n");
    fs::write(directory.path().join("file.next"), "").expect("a file");
    assert_eq!(incarnation.line(), "locked\n");
    let before = locked(directory.path());
    assert_eq!(before.len(), 1);
    for _ in 0..2 {
        incarnation.end_all();
        incarnation = again(&memory, &program);
        incarnation.handover.go().expect("gone on");
        while incarnation.line() != "locked\n" {}
        assert_eq!(locked(directory.path()), before);
    }
    incarnation.end_all();
}

/// A lock of another program does not disturb the replay, and the locks at the end of the replay are the recorded
/// locks.
#[test]
fn replay_restores_file_locks() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("file");
    let program = about(IN_EACH_WAY, &place);
    let file = File::open(&place).expect("the file");
    flock(&file, FlockOperation::LockExclusive).expect("it is free");
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, &program, false);
    let said = incarnation.line();
    assert_eq!(said, "taken, refused, nobody's\n");
    // The child takes its lock later.
    while locked(directory.path())
        .iter()
        .filter(|one| one.starts_with("POSIX"))
        .count()
        < 6
    {
        thread::sleep(Duration::from_millis(10));
    }
    flock(&file, FlockOperation::Unlock).expect("it was ours");
    let before = locked(directory.path());
    for _ in 0..2 {
        incarnation.end_all();
        assert_eq!(locked(directory.path()), BTreeSet::new());
        incarnation = again(&memory, &program);
        assert_eq!(locked(directory.path()), before, "before anybody goes on");
        incarnation.handover.go().expect("gone on");
        assert_eq!(incarnation.line(), said);
    }
    incarnation.end_all();
}

/// Outcomes and payload lengths of the lock records of a process.
fn noted(memory: &Memory, process: u32) -> Vec<(i64, usize)> {
    let mut bytes = vec![0; usize::try_from(memory.length(process)).expect("short")];
    memory.read(process, 0, &mut bytes).expect("read");
    Records::new(&bytes)
        .map(|record| record.expect("a record").1)
        .filter(|record| record.call == Call::Lock)
        .map(|record| (record.outcome, record.payload.len()))
        .collect()
}

/// Unlocks by closing the file by either descriptor, and by a conversion of the lock.
const LETS_GO: &str = r#"
import fcntl, os, time
one = os.open("PLACE", os.O_RDWR)
other = os.dup(one)
fcntl.lockf(one, fcntl.LOCK_EX)
os.close(other)
fcntl.lockf(one, fcntl.LOCK_EX)
os.close(os.open("/dev/null", os.O_RDONLY))
fcntl.flock(one, fcntl.LOCK_SH)
fcntl.flock(one, fcntl.LOCK_EX)
while True:
    print("said", flush=True)
    time.sleep(0.01)
"#;

/// Without the record of the unlock, two records could end with the same lock.
#[test]
fn implicit_unlock_is_recorded() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = about(LETS_GO, &directory.path().join("file"));
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, &program, false);
    incarnation.line();
    let before = locked(directory.path());
    assert_eq!(before.len(), 2);
    let (taken, let_go) = ((0, 0), (0, 1));
    assert_eq!(
        noted(&memory, 0),
        [taken, let_go, taken, taken, let_go, taken]
    );
    incarnation.end_all();
    let mut incarnation = again(&memory, &program);
    assert_eq!(locked(directory.path()), before);
    incarnation.handover.go().expect("gone on");
    incarnation.line();
    incarnation.end_all();
}

/// One child has the lock, and another child waits for the lock.
const WAITS: &str = r#"
import fcntl, os, time
children = []
for number in range(2):
    child = os.fork()
    if child == 0:
        file = open("PLACE", "r+")
        fcntl.lockf(file, fcntl.LOCK_EX)
        while True:
            time.sleep(0.1)
    children.append(child)
    while not os.path.exists("PLACE.next"):
        time.sleep(0.01)
print(*children, flush=True)
while True:
    time.sleep(0.1)
"#;

/// Otherwise the records of both children would end with the lock.
#[test]
fn lock_freed_by_crash_is_not_recorded() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = about(WAITS, &directory.path().join("file"));
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, &program, false);
    while noted(&memory, 1).is_empty() {
        thread::sleep(Duration::from_millis(10));
    }
    fs::write(directory.path().join("file.next"), "").expect("a file");
    let line = incarnation.line();
    let child: i32 = line.split(' ').next().expect("one").parse().expect("it");
    let inode = fs::metadata(directory.path().join("file"))
        .expect("it")
        .ino();
    let waits = || {
        let all = all_locks();
        let its = |line: &&str| line.contains("->") && line.contains(&format!(":{inode} "));
        all.lines().filter(its).count()
    };
    while waits() == 0 {
        thread::sleep(Duration::from_millis(10));
    }
    let child = Pid::from_raw(child).expect("a process");
    kill_process(child, Signal::KILL).expect("killed");
    while waits() != 0 {
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(100));
    assert_eq!(noted(&memory, 1), [(0, 0)]);
    assert_eq!(noted(&memory, 2), []);
    incarnation.end_all();
    let incarnation = again(&memory, &program);
    assert_eq!(locked(directory.path()).len(), 1);
    incarnation.end_all();
}
