use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use core::cell::RefCell;
use core::convert::Infallible;

use http1::version::ObjectVersion;

use super::*;
use crate::isn::{self, Slot};
use crate::record::{MemberHash, MemberList, NONCE_LEN, StoredAnswer, StoredOptions, StoredTurn};
use crate::store::{
    Completion, MembersFound, Operation, Outcome, Page, QueueFull, Report, StoredValue, Ticket,
};

const POOL: PoolKey = PoolKey([1; 16]);
const SERVER_INCARNATION: u32 = 2;

type Shelf = Rc<RefCell<BTreeMap<StoreKey, Vec<u8>>>>;
type Lists = Rc<RefCell<BTreeSet<(MemberList, MemberHash)>>>;

/// A store that answers at once.
#[derive(Default)]
struct Memory {
    shelf: Shelf,
    lists: Lists,
    reports: Vec<Report>,
    submitted: u64,
}

impl Store for Memory {
    fn submit(&mut self, operation: Operation) -> Result<Ticket, QueueFull> {
        self.submitted += 1;
        let ticket = Ticket(self.submitted);
        let mut shelf = self.shelf.borrow_mut();
        let value = |key: &StoreKey, value: &Vec<u8>| StoredValue {
            key: *key,
            value: value.clone(),
        };
        let outcome = match operation {
            Operation::Put { key, value } => {
                shelf.insert(key, value);
                Outcome::Stored
            }
            Operation::Scan { hash, .. } => Outcome::Page(Page {
                values: { shelf.iter() }
                    .filter(|(key, _)| key.hash == hash)
                    .map(|(key, bytes)| value(key, bytes))
                    .collect(),
                foreign: 0,
                next: None,
            }),
            Operation::Delete { key } => Outcome::Deleted {
                existed: shelf.remove(&key).is_some(),
            },
            Operation::Get { hashes, flow } => {
                let keys = hashes.iter().map(|hash| StoreKey::new(*hash, flow));
                let found = keys.filter_map(|key| Some(value(&key, shelf.get(&key)?)));
                Outcome::Found(found.collect())
            }
            Operation::AddMember { list, member } => {
                self.lists.borrow_mut().insert((list, member));
                Outcome::Stored
            }
            Operation::Members { lists } => {
                let all = self.lists.borrow();
                let listed = all.iter().filter(|(list, _)| lists.contains(list));
                Outcome::Members(listed.map(|(_, member)| *member).collect())
            }
            Operation::Renew { .. } | Operation::Probe => Outcome::Found(Vec::new()),
        };
        let result = Ok(outcome);
        self.reports
            .push(Report::Completed(Completion { ticket, result }));
        Ok(ticket)
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        reports.append(&mut self.reports);
    }

    fn name(&self) -> &str {
        "memory"
    }
}

/// No connection is known.
struct NoFlows;

impl StoredFlows for NoFlows {
    type Error = Infallible;

    fn flow(&mut self, _: FlowKey) -> Result<Option<Flow>, Infallible> {
        Ok(None)
    }

    fn set_stored(
        &mut self,
        _: FlowKey,
        _: u32,
        _: SeqNumber,
        _: StateBits,
    ) -> Result<bool, Infallible> {
        Ok(false)
    }

    fn give_up_record(&mut self, _: FlowKey, _: u32, _: SeqNumber) -> Result<(), Infallible> {
        Ok(())
    }

    fn set_store(&mut self, _: StoreKind) -> Result<(), Infallible> {
        Ok(())
    }
}

fn service() -> SocketAddr {
    ([10, 0, 0, 10], 80).into()
}

fn key() -> FlowKey {
    FlowKey::new(([10, 0, 0, 1], 40_000).into(), service())
}

fn name_of(member: &str) -> StoreKey {
    StoreKey::new(
        HashName::new(service(), MemberHash::of(member, &POOL)),
        key(),
    )
}

fn record(owner: u64) -> Record {
    let slot = Slot::new(3);
    let server_isn = isn::initial(&POOL, &key(), slot);
    let version = ObjectVersion {
        complete_len: Some(900),
        etag: Some("\"v\"".to_string()),
        last_modified: None,
        content_encoding: None,
    };
    let answer = StoredAnswer {
        start: server_isn + 1,
        header_len: 100,
        response_len: Some(1000),
        first_byte: 0,
        acked: 0,
        version,
    };
    Record {
        generation: 1,
        owner,
        client_isn: SeqNumber(7),
        server_isn,
        slot,
        options: StoredOptions {
            window_scale: Some(7),
            segment_size: 1460,
            has_sack: true,
            has_timestamps: false,
        },
        turns: vec![StoredTurn {
            number: 0,
            request_start: SeqNumber(8),
            request: b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            has_range: false,
            answer: Some(answer),
        }],
        inputs: None,
        chunks: None,
    }
}

/// The records of web1, with the store's records.
fn records(shelf: &Shelf) -> Records<Memory> {
    records_of("web1", shelf, &Lists::default(), true)
}

fn records_of(member: &str, shelf: &Shelf, lists: &Lists, has_index: bool) -> Records<Memory> {
    records_under(POOL, member, shelf, lists, has_index)
}

fn records_under(
    key: PoolKey,
    member: &str,
    shelf: &Shelf,
    lists: &Lists,
    has_index: bool,
) -> Records<Memory> {
    let settings = Settings {
        service: service(),
        key,
        delay: Duration::from_millis(5),
        acks: StoreAcks::First,
        has_index,
    };
    let store = Memory {
        shelf: Rc::clone(shelf),
        lists: Rc::clone(lists),
        ..Memory::default()
    };
    Records::new(&settings, member, vec![store], || [0; NONCE_LEN])
}

fn shelf(member: &str, record: &Record) -> Shelf {
    let name = name_of(member);
    let sealed = record.seal(&RecordKey::of(&POOL), &name, [0; NONCE_LEN]);
    Rc::new(RefCell::new(BTreeMap::from([(name, sealed.unwrap())])))
}

fn at(seconds: u64) -> Moment {
    Moment {
        now: Duration::from_secs(seconds),
        unix: Duration::from_secs(1_000_000 + seconds),
    }
}

/// Polls, and returns the number of calls that are due.
fn calls(records: &mut Records<Memory>, moment: Moment, owns: bool) -> usize {
    let life = (SERVER_INCARNATION, moment);
    for _ in 0..3 {
        let Ok(_) = records.poll(&mut NoFlows, &Beginnings::default(), life, |_| owns);
    }
    let Ok(calls) = records.due_calls(&mut NoFlows, SERVER_INCARNATION, moment.now);
    calls.len()
}

#[test]
fn clients_of_dead_member_are_called_by_the_next_owner() {
    for owns in [false, true] {
        let mut records = records(&shelf("web2", &record(22)));
        records.begin_membership(1);
        records.set_members([(1, "web1"), (22, "web2")].into_iter());
        assert_eq!(calls(&mut records, at(1), owns), 0);
        records.set_members([(1, "web1")].into_iter());
        assert_eq!(calls(&mut records, at(2), owns), usize::from(owns));
    }
}

/// The member was alone when it died: no other member has called its clients.
#[test]
fn clients_of_earlier_membership_are_called_by_the_member_itself() {
    let mut records = records(&shelf("web1", &record(11)));
    records.begin_membership(12);
    records.set_members([(12, "web1"), (22, "web2")].into_iter());
    assert_eq!(calls(&mut records, at(1), false), 1);
}

/// The member was not in the table when the other member died.
#[test]
fn clients_of_member_that_died_before_the_first_table_are_called() {
    let mut records = records(&shelf("web2", &record(22)));
    records.begin_membership(1);
    records.set_members([(1, "web1"), (22, "web2")].into_iter());
    records.begin_membership(2);
    records.set_members([(2, "web1")].into_iter());
    assert_eq!(calls(&mut records, at(1), true), 1);
}

/// Two members die at the same moment: the pool hears of one after the other, and the client is the second one's first.
#[test]
fn clients_are_called_when_their_next_owner_has_died_before_its_call() {
    let mut records = records(&shelf("web2", &record(22)));
    records.begin_membership(1);
    records.set_members([(1, "web1"), (22, "web2"), (33, "web3")].into_iter());
    calls(&mut records, at(1), false);
    records.set_members([(1, "web1"), (33, "web3")].into_iter());
    assert_eq!(calls(&mut records, at(2), false), 0);
    records.set_members([(1, "web1")].into_iter());
    assert_eq!(calls(&mut records, at(3), true), 1);
}

/// The clock of the dead member may be ahead: a record that the dead member wrote late must be older.
#[test]
fn record_of_a_revival_is_newer_than_the_clocks_of_two_hosts_differ() {
    let found = record(22);
    let shelf = shelf("web2", &found);
    let mut records = records(&shelf);
    records.begin_membership(1);
    records.on_revived(key(), &found, true, at(1));
    let name = name_of("web1");
    let written = Record::open(&shelf.borrow()[&name], &RecordKey::of(&POOL), &name).unwrap();
    let late = generation(at(1).unix + crate::revive::CLOCK_DIFFERENCE);
    assert!(written.generation > late);
}

/// The second of two stores has missed the newest record.
#[test]
fn older_record_of_the_second_store_replaces_no_call() {
    let mut calls = Calls::default();
    let newer = Record {
        generation: 2,
        ..record(22)
    };
    calls.extend([(name_of("web2"), newer)], at(1).now);
    let serves = |_| Ok::<_, Infallible>(false);
    let Ok(first) = calls.due(&POOL, at(1).now, serves);
    calls.extend([(name_of("web2"), record(22))], at(2).now);
    let Ok(second) = calls.due(&POOL, at(1).now + Duration::from_millis(10), serves);
    assert_eq!((first.len(), second.len()), (1, 0));
}

/// A copy of a client's segment.
fn copy() -> SegmentCopy {
    SegmentCopy {
        key: key(),
        kind: CopyKind::Unknown,
        interface: 1,
        packet: Vec::new(),
        packet_len: 0,
    }
}

/// web2 has joined and died, and its record is in the store. Then web1 joins.
fn joined_after_a_death(has_index: bool) -> Records<Memory> {
    let (shelf, lists) = (shelf("web2", &record(22)), Lists::default());
    let mut dead = records_of("web2", &shelf, &lists, has_index);
    dead.begin_membership(22);
    calls(&mut dead, at(0), true);
    let mut records = records_of("web1", &shelf, &lists, has_index);
    records.begin_membership(1);
    records.set_members([(1, "web1")].into_iter());
    records
}

#[test]
fn clients_of_member_that_died_before_the_boot_are_called() {
    for owns in [false, true] {
        let mut records = joined_after_a_death(true);
        assert_eq!(calls(&mut records, at(1), owns), usize::from(owns));
    }
}

/// Looks the record of the connection up, and waits for the store.
fn looked_up(records: &mut Records<Memory>) -> Vec<Result<Record, PositionError>> {
    assert!(records.look_up(copy(), at(1).now).is_none());
    let mut found = Vec::new();
    for _ in 0..3 {
        let life = (SERVER_INCARNATION, at(1));
        let Ok(more) = records.poll(&mut NoFlows, &Beginnings::default(), life, |_| true);
        found.extend(more);
    }
    found.into_iter().map(|it| it.record).collect()
}

#[test]
fn record_of_member_that_died_before_the_boot_is_found() {
    for has_index in [false, true] {
        let mut records = joined_after_a_death(has_index);
        assert_eq!(looked_up(&mut records), [Ok(record(22))]);
    }
}

/// The pool before had another key. Nobody can read its records, which are there until they expire.
#[test]
fn records_of_the_pool_before_are_not_looked_up() {
    let before = PoolKey([9; 16]);
    let old = HashName::new(service(), MemberHash::of("web2", &before));
    let old = StoreKey::new(old, key());
    let sealed = record(22).seal(&RecordKey::of(&before), &old, [0; NONCE_LEN]);
    let (shelf, lists) = (shelf("web3", &record(33)), Lists::default());
    shelf.borrow_mut().insert(old, sealed.unwrap());
    for (pool, member) in [(before, "web2"), (POOL, "web3")] {
        let mut dead = records_under(pool, member, &shelf, &lists, true);
        dead.begin_membership(22);
        calls(&mut dead, at(0), true);
    }
    let mut records = records_of("web1", &shelf, &lists, true);
    records.begin_membership(1);
    records.set_members([(1, "web1")].into_iter());
    assert_eq!(looked_up(&mut records), [Ok(record(33))]);
}

/// A list that cannot be read may have the name of a record.
#[test]
fn missing_record_is_no_proof_without_the_list_of_members() {
    let shelf = Shelf::default();
    let mut records = records(&shelf);
    records.begin_membership(1);
    let names = &mut records.names;
    let (look, _) = names.due_look(at(1)).unwrap();
    let failure = Some(Failure::TimedOut);
    let members = Vec::new();
    names.note_listed(look, MembersFound { members, failure }, at(1).now);
    let mut look_ups = LookUps::default();
    assert!(look_ups.begin(copy(), at(1).now));
    look_ups.note_asked(key(), records.names.version);
    let missing = |look_ups: &mut LookUps, moment: Moment| {
        let found = look_ups.complete(key(), Ok(Lookup::Missing), &records.names, moment.now);
        found.map(|it| it.record)
    };
    assert_eq!(missing(&mut look_ups, at(2)), None);
    let lost = Some(Err(PositionError::StoreLost));
    assert_eq!(missing(&mut look_ups, at(5)), lost);
}

#[test]
fn clients_of_present_member_are_not_called() {
    let mut records = records(&shelf("web1", &record(12)));
    records.begin_membership(12);
    records.set_members([(12, "web1")].into_iter());
    assert_eq!(calls(&mut records, at(1), true), 0);
}

/// The server dies in the middle of a revival: the programs know nothing of the connection, and the client waits.
#[test]
fn record_of_interrupted_revival_is_retained_and_its_client_called() {
    let of_dead = record(22);
    let shelf = shelf("web2", &of_dead);
    let mut records = records(&shelf);
    records.begin_membership(1);
    records.set_members([(1, "web1"), (22, "web2")].into_iter());
    assert_eq!(calls(&mut records, at(1), true), 0);
    records.server_died(vec![(key(), of_dead)], at(2));
    assert_eq!(calls(&mut records, at(10), true), 0);
    assert_eq!(shelf.borrow().len(), 1, "the client may need the record");
    records.call_own(at(11).now);
    assert_eq!(calls(&mut records, at(11), true), 1);
    calls(&mut records, at(200), true);
    assert!(shelf.borrow().is_empty() && records.kept.is_empty());
}
