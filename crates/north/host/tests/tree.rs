//! Processes that a replay starts again.

use std::collections::BTreeSet;

use north_abi::{HEADER_MAX, Record, handover::StreamOffsets};
use north_host::{Call, Ends, LogFeed, Memory, Position, layout::Fate};

fn add(bytes: &mut Vec<u8>, call: Call, outcome: i64, payload: &[u8]) {
    add_of(bytes, call, 0, outcome, payload);
}

fn add_of(bytes: &mut Vec<u8>, call: Call, fd: u32, outcome: i64, payload: &[u8]) {
    let record = Record {
        call,
        fd,
        outcome,
        payload,
    };
    let mut header = [0; HEADER_MAX];
    let length = record.header().write(&mut header);
    bytes.extend_from_slice(&header[..length]);
    bytes.extend_from_slice(payload);
}

/// Feeds the stream of a process with this parent and these fates.
fn process(memory: &Memory, number: u32, parent: u32, fates: &[Fate], ends: Ends) {
    process_of(memory, number, parent, parent, fates, ends);
}

/// As [`process`], with the maker of the process's channels.
fn process_of(memory: &Memory, number: u32, parent: u32, maker: u32, fates: &[Fate], ends: Ends) {
    let mut bytes = Vec::new();
    let pid = i64::from(number) + 100;
    add(&mut bytes, Call::Start, pid, &parent.to_le_bytes());
    for fate in fates {
        let place = StreamOffsets::default().to_bytes();
        let payload = match fate {
            Fate::Serves => [&ends.0[..], &place].concat(),
            Fate::Confers => maker.to_le_bytes().to_vec(),
            _ => Vec::new(),
        };
        add(&mut bytes, Call::Fate, *fate as i64, &payload);
    }
    LogFeed::new(number)
        .take(memory, &bytes)
        .expect("room for it");
}

/// The same holds for streams from elsewhere.
#[test]
fn children_with_clients_start_with_parents() {
    let memory = Memory::new().expect("memory");
    let [here, gone] = [1, 2].map(|byte| Ends([byte; 36]));
    let all: [(u32, &[Fate], Ends); 11] = [
        (0, &[], gone),
        (0, &[Fate::Talks], gone),                  // 1: its child serves
        (1, &[Fate::Holds, Fate::Serves], here),    // 2
        (0, &[Fate::Holds], gone),                  // 3: may have a client
        (0, &[Fate::Holds, Fate::Talks], gone),     // 4: no server works like this
        (0, &[Fate::Serves, Fate::Ends], here),     // 5: the client must receive the end
        (0, &[Fate::Serves, Fate::Ends], gone),     // 6
        (0, &[Fate::Serves, Fate::Executes], here), // 7
        (0, &[Fate::Holds, Fate::Ends], gone),      // 8
        (8, &[], gone),                             // 9
        (0, &[Fate::Serves], gone),                 // 10: the client is gone, perhaps unnoticed
    ];
    for (number, (parent, fates, ends)) in (0..).zip(all) {
        process(&memory, number, parent, fates, ends);
    }
    let mut positions = [Position {
        ends: here,
        received: 0,
    }];
    memory.to_be_replayed(&mut positions).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 1, 2, 3, 5, 10]));
    assert!(memory.is_served_by_children());
}

/// Records of a process that has forked these children.
fn forks(bytes: &mut Vec<u8>, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        add(bytes, Call::Fork, number.into(), &[]);
        add_of(bytes, Call::Fork, number, i64::from(number) + 100, &[]);
    }
}

/// Children without clients continue if their state is known, because their parents wait for them.
#[test]
fn running_children_are_started() {
    let memory = Memory::new().expect("memory");
    let all: [(u32, &[Fate]); 13] = [
        (0, &[]),
        (0, &[]),                         // 1
        (0, &[Fate::Holds, Fate::Talks]), // 2
        (0, &[Fate::Ends]),               // 3: the parent has not waited
        (0, &[Fate::Ends]),               // 4: the parent has waited
        (0, &[]),                         // 5: got a signal
        (0, &[]),                         // 6: the fork failed, and a later fork succeeded
        (0, &[]),                         // 7
        (7, &[]),                         // 8
        (0, &[Fate::Executes]),           // 9
        (0, &[Fate::Shares]),             // 10
        (4, &[]),                         // 11
        (0, &[Fate::Ends, Fate::Talks]),  // 12: the parent has waited
    ];
    for (number, (parent, fates)) in (0..).zip(all) {
        process(&memory, number, parent, fates, Ends::default());
    }
    let feed = |number: u32, bytes: &[u8]| {
        LogFeed::new(number)
            .take(&memory, bytes)
            .expect("room for it");
    };
    let mut first = Vec::new();
    forks(&mut first, 1..=5);
    add(&mut first, Call::Wait, 104, &[]);
    add_of(&mut first, Call::Kill, 105, 0, &[]);
    add(&mut first, Call::Fork, 6, &[]);
    forks(&mut first, [7, 9, 10, 12, 14]); // 14 has no records yet
    add(&mut first, Call::Wait, 112, &[]);
    feed(0, &first);
    for (parent, child) in [(7, 8), (4, 11)] {
        let mut bytes = Vec::new();
        forks(&mut bytes, [child]);
        feed(parent, &bytes);
    }
    memory.to_be_replayed(&mut []).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 1, 2, 3, 7, 8, 14]));
    // No record has the order of two writers to one pipe.
    process(&memory, 15, 0, &[Fate::Talks], Ends::default());
    let mut more = Vec::new();
    forks(&mut more, [15]);
    feed(0, &more);
    memory.to_be_replayed(&mut []).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 1, 3, 7, 8, 14]));
    // A signal to a group may have been for any running child.
    let mut last = Vec::new();
    let group = (-100_i32).cast_unsigned();
    add_of(&mut last, Call::Kill, group, 0, &[]);
    feed(0, &last);
    memory.to_be_replayed(&mut []).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 3]));
}

/// Bytes in a channel must be there again after the replay.
#[test]
fn ipc_peers_of_started_process_are_started() {
    let memory = Memory::new().expect("memory");
    let [here, gone] = [1, 2].map(|byte| Ends([byte; 36]));
    process(&memory, 0, 0, &[], gone);
    process(&memory, 1, 0, &[], gone);
    process(&memory, 2, 1, &[Fate::Confers, Fate::Serves], here);
    process(&memory, 3, 1, &[Fate::Confers, Fate::Ends], gone);
    process(&memory, 4, 1, &[Fate::Ends], gone);
    process_of(&memory, 5, 4, 1, &[Fate::Confers], gone); // over the channels of 1 that its parent has
    process(&memory, 6, 1, &[Fate::Confers, Fate::Executes], gone);
    process(&memory, 7, 0, &[], gone);
    process(&memory, 8, 7, &[Fate::Confers], gone);
    let mut positions = [Position {
        ends: here,
        received: 0,
    }];
    memory.to_be_replayed(&mut positions).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 1, 2, 3, 4, 5]));
}

/// A replica starts the first process only, and is usable as long as no child may have a client.
#[test]
fn replica_starts_main_process_only() {
    let memory = Memory::new().expect("memory");
    memory.follow();
    process(&memory, 0, 0, &[], Ends::default());
    process(&memory, 1, 0, &[Fate::Holds, Fate::Talks], Ends::default());
    assert_eq!(memory.begun(), BTreeSet::from([0]));
    assert_eq!(memory.lag(), memory.length(0));
    assert!(!memory.may_be_served_by_children());
    process(&memory, 2, 0, &[Fate::Holds], Ends::default());
    assert!(memory.may_be_served_by_children() && !memory.is_served_by_children());
    process(&memory, 3, 0, &[Fate::Holds, Fate::Serves], Ends::default());
    assert!(memory.is_served_by_children());
    assert_eq!(memory.begun(), BTreeSet::from([0]));
}

/// Only the announcement of a child may have arrived. The number is reserved all the same.
#[test]
fn process_number_is_unique() {
    let memory = Memory::new().expect("memory");
    let mut bytes = Vec::new();
    add(&mut bytes, Call::Fork, 7, &[]);
    LogFeed::new(0).take(&memory, &bytes).expect("room for it");
    assert_eq!(memory.processes(), 0..8);
    assert_eq!(memory.length(7), 0);
}

/// An image has the first process only: all children must have ended, and no client may depend on their output.
#[test]
fn running_children_prevent_image() {
    let at_work = |fates: &[Fate]| {
        let memory = Memory::new().expect("memory");
        process(&memory, 0, 0, &[], Ends::default());
        process(&memory, 1, 0, fates, Ends::default());
        memory
    };
    assert!(!Memory::new().expect("memory").has_children_at_work());
    for fates in [&[][..], &[Fate::Holds], &[Fate::Serves, Fate::Ends]] {
        assert!(at_work(fates).has_children_at_work(), "{fates:?}");
    }
    let over = [
        &[Fate::Ends][..],
        &[Fate::Holds, Fate::Talks, Fate::Ends],
        &[Fate::Executes],
    ];
    for fates in over {
        assert!(!at_work(fates).has_children_at_work(), "{fates:?}");
    }
    // A child at work died with the server.
    let memory = at_work(&[Fate::Talks]);
    assert!(memory.has_children_at_work());
    memory.to_be_replayed(&mut []).expect("memory");
    assert!(!memory.has_children_at_work());
}

/// A replay starts neither the child nor its session again, and starts all other processes.
#[test]
fn abandoned_session_is_not_started() {
    let memory = Memory::new().expect("memory");
    let clients = [1, 2, 3, 4].map(|byte| Ends([byte; 36]));
    let [other, its, childs, gone] = clients;
    let all: [(u32, &[Fate], Ends); 6] = [
        (0, &[], gone),
        (0, &[Fate::Serves], other),            // 1
        (0, &[Fate::Serves], its),              // 2: its child dies
        (2, &[Fate::Serves], childs),           // 3
        (2, &[Fate::Confers], gone),            // 4: uses channels of 2
        (0, &[Fate::Serves, Fate::Ends], gone), // 5
    ];
    for (number, (parent, fates, ends)) in (0..).zip(all) {
        process(&memory, number, parent, fates, ends);
    }
    let mut positions = clients.map(|ends| Position { ends, received: 0 });
    memory.to_be_replayed(&mut positions[..3]).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 1, 2, 3, 4]));
    let given_up = memory.give_up_session(3).expect("records");
    assert_eq!(given_up, BTreeSet::from([its, childs]));
    memory.to_be_replayed(&mut positions[..3]).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 1]));
}

/// A manager without clients belongs to no session. A client that another process has or had does not belong to the
/// session.
#[test]
fn quarantine_spares_manager_and_shared_clients() {
    let memory = Memory::new().expect("memory");
    let [one, both, gone] = [1, 2, 3].map(|byte| Ends([byte; 36]));
    let all: [(u32, &[Fate], Ends); 6] = [
        (0, &[], gone),
        (0, &[], gone),             // 1: the manager
        (1, &[Fate::Serves], one),  // 2
        (1, &[Fate::Serves], both), // 3
        (1, &[Fate::Serves], both), // 4
        (3, &[Fate::Serves], one),  // 5
    ];
    for (number, (parent, fates, ends)) in (0..).zip(all) {
        process(&memory, number, parent, fates, ends);
    }
    let mut positions = [one, both].map(|ends| Position { ends, received: 0 });
    assert_eq!(memory.give_up_session(5).expect("records"), BTreeSet::new());
    memory.to_be_replayed(&mut positions).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 1, 2, 4]));
}
