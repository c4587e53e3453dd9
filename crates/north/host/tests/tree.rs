//! Which processes are begun again in a replay.

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

/// A stream: its process has this parent, and these fates.
fn process(memory: &Memory, number: u32, parent: u32, fates: &[Fate], ends: Ends) {
    process_of(memory, number, parent, parent, fates, ends);
}

/// The same with the one that has made what it talks by.
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

/// Also if the streams come from elsewhere.
#[test]
fn children_with_clients_start_with_parents() {
    let memory = Memory::new().expect("memory");
    let [here, gone] = [1, 2].map(|byte| Ends([byte; 36]));
    let all: [(u32, &[Fate], Ends); 11] = [
        (0, &[], gone),
        (0, &[Fate::Talks], gone),                  // 1: its child serves
        (1, &[Fate::Holds, Fate::Serves], here),    // 2
        (0, &[Fate::Holds], gone),                  // 3: it may have a client
        (0, &[Fate::Holds, Fate::Talks], gone),     // 4: that is no server's way
        (0, &[Fate::Serves, Fate::Ends], here),     // 5: its client is to hear the end
        (0, &[Fate::Serves, Fate::Ends], gone),     // 6
        (0, &[Fate::Serves, Fate::Executes], here), // 7
        (0, &[Fate::Holds, Fate::Ends], gone),      // 8
        (8, &[], gone),                             // 9
        (0, &[Fate::Serves], gone), // 10: its client is gone, and it may not know that
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

/// A process has begun these.
fn forks(bytes: &mut Vec<u8>, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        add(bytes, Call::Fork, number.into(), &[]);
        add_of(bytes, Call::Fork, number, i64::from(number) + 100, &[]);
    }
}

/// Those that have no clients go on where they were, if that is known, and their parents wait for them.
#[test]
fn running_children_are_started() {
    let memory = Memory::new().expect("memory");
    let all: [(u32, &[Fate]); 13] = [
        (0, &[]),
        (0, &[]),                         // 1
        (0, &[Fate::Holds, Fate::Talks]), // 2
        (0, &[Fate::Ends]),               // 3: its parent has not heard of that
        (0, &[Fate::Ends]),               // 4: it has
        (0, &[]),                         // 5: it was sent a signal
        (0, &[]),                         // 6: another one was begun in its place
        (0, &[]),                         // 7
        (7, &[]),                         // 8
        (0, &[Fate::Executes]),           // 9
        (0, &[Fate::Shares]),             // 10
        (4, &[]),                         // 11
        (0, &[Fate::Ends, Fate::Talks]),  // 12: its parent has heard of that
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
    forks(&mut first, [7, 9, 10, 12, 14]); // 14 has noted nothing yet
    add(&mut first, Call::Wait, 112, &[]);
    feed(0, &first);
    for (parent, child) in [(7, 8), (4, 11)] {
        let mut bytes = Vec::new();
        forks(&mut bytes, [child]);
        feed(parent, &bytes);
    }
    memory.to_be_replayed(&mut []).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 1, 2, 3, 7, 8, 14]));
    // Of what two write to one pipe, nobody knows the order.
    process(&memory, 15, 0, &[Fate::Talks], Ends::default());
    let mut more = Vec::new();
    forks(&mut more, [15]);
    feed(0, &more);
    memory.to_be_replayed(&mut []).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 1, 3, 7, 8, 14]));
    // A signal to a group may have been for any of them that was at work.
    let mut last = Vec::new();
    let group = (-100_i32).cast_unsigned();
    add_of(&mut last, Call::Kill, group, 0, &[]);
    feed(0, &last);
    memory.to_be_replayed(&mut []).expect("memory");
    assert_eq!(memory.begun(), BTreeSet::from([0, 3]));
}

/// What was on its way between them is to be there again.
#[test]
fn ipc_peers_of_started_process_are_started() {
    let memory = Memory::new().expect("memory");
    let [here, gone] = [1, 2].map(|byte| Ends([byte; 36]));
    process(&memory, 0, 0, &[], gone);
    process(&memory, 1, 0, &[], gone);
    process(&memory, 2, 1, &[Fate::Confers, Fate::Serves], here);
    process(&memory, 3, 1, &[Fate::Confers, Fate::Ends], gone);
    process(&memory, 4, 1, &[Fate::Ends], gone);
    process_of(&memory, 5, 4, 1, &[Fate::Confers], gone); // by what its parent has from 1
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

/// Who follows begins the first process only, and is of use as long as no child may have a client.
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

/// Of a child nothing may have arrived but that it was to be begun: no other one gets its number.
#[test]
fn process_number_is_unique() {
    let memory = Memory::new().expect("memory");
    let mut bytes = Vec::new();
    add(&mut bytes, Call::Fork, 7, &[]);
    LogFeed::new(0).take(&memory, &bytes).expect("room for it");
    assert_eq!(memory.processes(), 0..8);
    assert_eq!(memory.length(7), 0);
}

/// An image is of the first process alone: children must be over, and nobody may wait for what they have said.
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
    // One that was at work when the server died has died with it.
    let memory = at_work(&[Fate::Talks]);
    assert!(memory.has_children_at_work());
    memory.to_be_replayed(&mut []).expect("memory");
    assert!(!memory.has_children_at_work());
}

/// It is begun no more, nor is who is of its session; the others are.
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
        (2, &[Fate::Confers], gone),            // 4: has talked by what 2 has made
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

/// A manager that has no client is nobody's session; and a client that somebody else has, or had, is not the child's
/// alone.
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
