//! Programs that print their state, and their next incarnations.

mod children;
mod connections;
mod incarnation;
mod locks;
mod threads;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::BufRead as _,
    os::unix::fs::MetadataExt as _,
    thread,
    time::{Duration, Instant},
};

use north_abi::{Call, Record};
use north_host::{Ends, Handover, LogFeed, Memory, Position};

use incarnation::{Incarnation, REPLAY_TIMEOUT};

/// Makes keys in all ways of OpenSSL, and prints the keys again and again. A Python module loads the library.
const KEYS: &str = r#"
import ctypes, os, ssl, time
crypto = ctypes.CDLL("libcrypto.so.3")
crypto.EVP_PKEY_Q_keygen.restype = ctypes.c_void_p
key = crypto.EVP_PKEY_Q_keygen(None, None, b"X25519")
room, length = ctypes.create_string_buffer(32), ctypes.c_size_t(32)
assert crypto.EVP_PKEY_get_raw_private_key(ctypes.c_void_p(key), room, ctypes.byref(length)) == 1
private = ctypes.create_string_buffer(16)
assert crypto.RAND_priv_bytes(private, 16) == 1
keys = [room.raw, private.raw, ssl.RAND_bytes(400)]
while True:
    print(" ".join(key.hex() for key in keys), flush=True)
    time.sleep(0.01)
"#;

/// Prints the addresses of objects.
const OBJECTS: &str = r#"
import time
objects = [bytes(1000 * number) for number in range(400)]
while True:
    print(" ".join(hex(id(one)) for one in objects), flush=True)
    time.sleep(0.01)
"#;

/// Prints the memory of the allocator after the first allocation, whose size is random in each incarnation.
const MEMORY: &str = r#"
import ctypes, os, time
every = ctypes.CDLL(None)
every.getauxval.restype = every.memset.restype = every.malloc.restype = ctypes.c_void_p
AT_RANDOM = 25
drawn = ctypes.string_at(every.getauxval(AT_RANDOM), 2)
size = 1 << 20 | int.from_bytes(drawn, "big") << 8
every.memset(ctypes.c_void_p(every.malloc(size)), 1, size)
held, length = ctypes.c_size_t(), ctypes.c_size_t(8)
told = every.mallctl(b"stats.resident", ctypes.byref(held), ctypes.byref(length), None, 0)
assert (told, length.value) == (0, 8)
numbers, count, again = (ctypes.c_size_t * 8)(), ctypes.c_size_t(8), ctypes.c_size_t()
assert every.mallctlnametomib(b"stats.resident", numbers, ctypes.byref(count)) == 0
assert every.mallctlbymib(numbers, count, ctypes.byref(again), ctypes.byref(length), None, 0) == 0
while True:
    print(held.value, again.value, flush=True)
    time.sleep(0.01)
"#;

/// The record has the random numbers of OpenSSL, whatever the addresses of an incarnation.
#[test]
fn openssl_random_is_replayed() {
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, KEYS, false);
    let said = incarnation.line();
    assert_eq!(incarnation.line(), said);
    for _ in 0..2 {
        drop(incarnation);
        memory.to_be_replayed(&mut []).expect("memory");
        incarnation = Incarnation::begin(&memory, KEYS, false);
        incarnation.replays(&memory);
        incarnation.handover.go().expect("gone on");
        assert_eq!(incarnation.line(), said);
    }
    let other = Memory::new().expect("memory");
    assert_ne!(
        Incarnation::begin(&other, KEYS, false).line(),
        said,
        "random"
    );
}

/// The record has the allocator's answers about memory.
#[test]
fn allocator_statistics_are_replayed() {
    let begin =
        |memory: &Memory| Incarnation::begin_with(Some("libjemalloc.so.2"), memory, MEMORY, true);
    let memory = Memory::new().expect("memory");
    let mut incarnation = begin(&memory);
    let said = incarnation.line();
    for _ in 0..2 {
        drop(incarnation);
        memory.to_be_replayed(&mut []).expect("memory");
        incarnation = begin(&memory);
        incarnation.replays(&memory);
        incarnation.handover.go().expect("gone on");
        assert_eq!(incarnation.line(), said);
    }
    // Allocators round up: two incarnations may have equal numbers by chance, seventeen do not.
    let is_other = |_| begin(&Memory::new().expect("memory")).line() != said;
    assert!((0..16).any(is_other), "it is not random");
}

/// A process that waits for its connections ends when the supervisor dies.
#[test]
fn replay_ends_with_supervisor() {
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, KEYS, false);
    incarnation.line();
    drop(incarnation);
    memory.to_be_replayed(&mut []).expect("memory");
    incarnation = Incarnation::begin(&memory, KEYS, false);
    incarnation.replays(&memory);
    incarnation.handover = Handover::new().expect("another");
    let mut line = String::new();
    let length = incarnation.stdout.read_line(&mut line).expect("the end");
    assert_eq!(length, 0, "it has gone on: {line}");
    let status = incarnation.child.wait().expect("it ends");
    assert_eq!(status.code(), Some(125));
}

/// Neither the length of the record nor the number of positions changes the addresses of a program's objects.
#[test]
fn replay_keeps_object_addresses() {
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, OBJECTS, true);
    let said = incarnation.line();
    let mut clients = vec![
        Position {
            ends: Ends::default(),
            received: 0,
        };
        100_000
    ];
    for _ in 0..2 {
        drop(incarnation);
        memory.to_be_replayed(&mut clients).expect("memory");
        incarnation = Incarnation::begin(&memory, OBJECTS, true);
        incarnation.replays(&memory);
        incarnation.handover.go().expect("gone on");
        assert_eq!(incarnation.line(), said);
    }
}

/// Feeds the new records of one memory into another, in pieces.
fn pass_on(from: &Memory, to: &Memory, feed: &mut LogFeed) {
    let (begin, end) = (feed.position(to), from.length(0));
    let length = usize::try_from(end - begin).expect("short");
    let mut bytes = vec![0; length];
    from.read(0, begin, &mut bytes).expect("read");
    for piece in bytes.chunks(1000) {
        feed.take(to, piece).expect("room");
        to.notify_appended();
    }
}

/// Prints a random number, and a count of reads from a device that always has data.
const COUNTS: &str = r#"
import os, time
drawn = os.urandom(16).hex()
count = 0
while True:
    count += len(open("/dev/urandom", "rb", buffering=0).read(1))
    print(drawn, count, flush=True)
    time.sleep(0.002)
"#;

/// A replica repeats the output of the program, waits at the end of the record, and continues after the promotion.
#[test]
fn replica_waits_for_determinants() {
    let (first, second) = (
        Memory::new().expect("memory"),
        Memory::new().expect("memory"),
    );
    let mut serves = Incarnation::begin(&first, COUNTS, false);
    serves.line();
    let mut feed = LogFeed::new(0);
    second.follow();
    let mut follows = Incarnation::begin(&second, COUNTS, false);
    for _ in 0..20 {
        serves.line();
        pass_on(&first, &second, &mut feed);
    }
    // A replica waits for missing records without a limit.
    let deadline = Instant::now() + REPLAY_TIMEOUT;
    while second.lag() > 0 {
        assert!(Instant::now() < deadline, "{} behind", second.lag());
        thread::sleep(Duration::from_millis(5));
    }
    follows.handover.receive_messages().expect("a socket");
    assert!(!follows.handover.has_reports_of(&second.begun()));
    assert_eq!(second.divergence(), None);
    let last = serves.line();
    let (drawn, _) = last.split_once(' ').expect("two words");
    drop(serves);
    pass_on(&first, &second, &mut feed);
    second.end_replica();
    follows.replays(&second);
    follows.handover.go().expect("gone on");
    let said = follows.line();
    let count = said.strip_prefix(drawn).expect("what was drawn").trim();
    let count: u64 = count.parse().expect("a number");
    assert!(count >= 21, "{count}: from its beginning again");
    assert!(second.length(0) >= first.length(0), "what follows is noted");
}

/// Makes a file, changes the file's name, and reports.
const NAMES: &str = r#"
import os, time
os.chdir("DIRECTORY")
with open("temporary", "w") as file:
    file.write("kept")
EFFECT
while True:
    print("done", flush=True)
    time.sleep(0.01)
"#;

/// The record up to the last [`Call::Intent`].
fn until_last_intent(from: &Memory) -> Memory {
    let mut bytes = vec![0; usize::try_from(from.length(0)).expect("short")];
    from.read(0, 0, &mut bytes).expect("read");
    let (mut at, mut end) = (0, 0);
    while at < bytes.len() {
        let (record, length) = Record::read(&bytes[at..]).expect("records");
        at += length;
        if record.call == Call::Intent {
            end = at;
        }
    }
    assert!(end > 0, "nothing was intended");
    let memory = Memory::new().expect("memory");
    LogFeed::new(0).take(&memory, &bytes[..end]).expect("room");
    memory
}

/// A death between a change of a name and its record: the replay makes the file again, because the name is gone. The
/// new file does not stay beside the file that the change has left.
#[test]
fn unrecorded_rename_applies_to_recreated_file() {
    let all = ["os.rename('temporary', 'kept')", "os.unlink('temporary')"];
    for effect in all {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().to_str().expect("a name");
        let program = NAMES.replace("DIRECTORY", place).replace("EFFECT", effect);
        let files = || -> BTreeMap<_, _> {
            let entries = fs::read_dir(directory.path()).expect("a directory");
            let read = entries.map(|entry| {
                let entry = entry.expect("an entry");
                let about = entry.metadata().expect("an inode");
                let contents = fs::read(entry.path()).expect("a file");
                (entry.file_name(), (about.ino(), contents))
            });
            read.collect()
        };
        let memory = Memory::new().expect("memory");
        let mut incarnation = Incarnation::begin(&memory, &program, false);
        assert_eq!(incarnation.line(), "done\n");
        drop(incarnation);
        let then = files();
        let memory = until_last_intent(&memory);
        for _ in 0..2 {
            memory.to_be_replayed(&mut []).expect("memory");
            let mut incarnation = Incarnation::begin(&memory, &program, false);
            incarnation.replays(&memory);
            incarnation.handover.go().expect("gone on");
            assert_eq!(incarnation.line(), "done\n");
            assert_eq!(files(), then, "{effect}");
        }
    }
}

/// A child writes a file, and reports with the file open.
const MAKES: &str = r#"
import os, time
os.chdir("DIRECTORY")
if os.fork():
    os.wait()
with open("made", "w") as file:
    file.write("whole")
    file.flush()
    while True:
        print("done", flush=True)
        time.sleep(0.01)
"#;

/// A replay that ended early has left a part of the file, and the next replay makes the file again.
#[test]
fn file_of_interrupted_replay_is_recreated() {
    let directory = tempfile::tempdir().expect("a directory");
    let made = directory.path().join("made");
    let inode = || fs::metadata(&made).expect("it is there").ino();
    let place = directory.path().to_str().expect("a name");
    let program = MAKES.replace("DIRECTORY", place);
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, &program, false);
    assert_eq!(incarnation.line(), "done\n");
    incarnation.end_all();
    let then = inode();
    let beside = directory.path().join("beside");
    fs::rename(&made, &beside).expect("gone"); // keeps the inode in use
    fs::write(&made, "a part").expect("as a replay leaves it");
    memory.page().remade.begin(then, inode());
    for _ in 0..2 {
        memory.to_be_replayed(&mut []).expect("memory");
        assert_eq!(memory.begun(), BTreeSet::from([0, 1]));
        let mut incarnation = Incarnation::begin(&memory, &program, false);
        incarnation.replays(&memory);
        incarnation.handover.go().expect("gone on");
        assert_eq!(incarnation.line(), "done\n");
        assert_eq!(fs::read_to_string(&made).expect("it"), "whole");
        incarnation.end_all();
    }
}
