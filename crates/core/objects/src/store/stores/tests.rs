use alloc::{borrow::ToOwned as _, collections::VecDeque, vec};

use wire::SeqNumber;

use super::*;
use crate::PoolKey;
use crate::isn::Slot;
use crate::record::{MemberHash, StoredOptions};
use crate::store::{Probe, QueueFull};

/// A store whose answers a test gives.
#[derive(Debug)]
struct Scripted {
    answers: VecDeque<Result<Outcome, Failure>>,
    reports: Vec<Report>,
    next: u64,
}

impl Scripted {
    fn new(answers: impl IntoIterator<Item = Result<Outcome, Failure>>) -> Self {
        let answers = answers.into_iter().collect();
        Self {
            answers,
            reports: Vec::new(),
            next: 0,
        }
    }
}

impl Store for Scripted {
    fn submit(&mut self, _: Operation) -> Result<Ticket, QueueFull> {
        let result = self.answers.pop_front().ok_or(QueueFull)?;
        self.next += 1;
        let ticket = Ticket(self.next);
        self.reports
            .push(Report::Completed(Completion { ticket, result }));
        Ok(ticket)
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        reports.append(&mut self.reports);
    }

    fn name(&self) -> &str {
        "scripted"
    }
}

const POOL: PoolKey = PoolKey([1; 16]);

fn key(member: &str) -> StoreKey {
    let flow = FlowKey::new(([10, 0, 0, 1], 1).into(), ([10, 0, 0, 10], 80).into());
    StoreKey::new(
        HashName::new(flow.server(), MemberHash::of(member, &POOL)),
        flow,
    )
}

fn record(generation: u32) -> Record {
    Record {
        generation,
        owner: 1,
        client_isn: SeqNumber(1),
        server_isn: SeqNumber(2),
        slot: Slot::new(3),
        options: StoredOptions {
            window_scale: None,
            segment_size: 1460,
            has_sack: true,
            has_timestamps: false,
        },
        turns: Vec::new(),
        inputs: None,
        chunks: None,
    }
}

fn value(member: &str, generation: u32) -> StoredValue {
    let (key, nonce) = (key(member), [generation.to_le_bytes()[0]; NONCE_LEN]);
    let value = record(generation)
        .seal(&RecordKey::of(&POOL), &key, nonce)
        .unwrap();
    StoredValue { key, value }
}

fn found(values: &[StoredValue]) -> Result<Outcome, Failure> {
    Ok(Outcome::Found(values.to_vec()))
}

fn lost() -> Failure {
    Failure::ConnectionLost("reset".to_owned())
}

fn stores(all: Vec<Scripted>, acks: StoreAcks) -> Stores<Scripted> {
    Stores::new(all, RecordKey::of(&POOL), || [3; NONCE_LEN], acks)
}

fn outcomes(stores: &mut Stores<Scripted>) -> Vec<StoresOutcome> {
    let mut events = Vec::new();
    stores.poll(&mut events);
    assert!(stores.pending.is_empty() && stores.parts.is_empty());
    let outcome = |event| match event {
        StoresEvent::Completed(completion) => Some(completion.outcome),
        _ => None,
    };
    events.into_iter().filter_map(outcome).collect()
}

fn put(acks: StoreAcks, answers: Vec<Result<Outcome, Failure>>) -> Vec<StoresOutcome> {
    let all = answers
        .into_iter()
        .map(|answer| Scripted::new([answer]))
        .collect();
    let mut stores = stores(all, acks);
    stores.put(key("web1"), &record(1)).unwrap();
    outcomes(&mut stores)
}

fn look_up(answers: Vec<Result<Outcome, Failure>>) -> Result<Lookup, Failure> {
    let all = answers
        .into_iter()
        .map(|answer| Scripted::new([answer]))
        .collect();
    let mut stores = stores(all, StoreAcks::First);
    stores.look_up(&[key("web1").hash, key("web2").hash], key("web1").flow);
    match outcomes(&mut stores).as_slice() {
        [StoresOutcome::LookUp(result)] => result.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn put_is_over_with_as_many_confirmations_as_wanted() {
    let ok = || Ok(Outcome::Stored);
    let done = [StoresOutcome::Put(Ok(()))];
    let failed = [StoresOutcome::Put(Err(lost()))];
    for (acks, answers, outcome) in [
        (StoreAcks::First, vec![ok()], &done),
        (StoreAcks::Both, vec![ok()], &done),
        (StoreAcks::First, vec![Err(lost())], &failed),
        (StoreAcks::First, vec![ok(), ok()], &done),
        (StoreAcks::First, vec![ok(), Err(lost())], &done),
        (StoreAcks::First, vec![Err(lost()), ok()], &done),
        (
            StoreAcks::First,
            vec![Err(lost()), Err(Failure::TimedOut)],
            &failed,
        ),
        (StoreAcks::Both, vec![ok(), ok()], &done),
        (StoreAcks::Both, vec![ok(), Err(lost())], &failed),
        (StoreAcks::Both, vec![Err(lost()), ok()], &failed),
    ] {
        assert_eq!(put(acks, answers.clone()), outcome, "{acks:?} {answers:?}");
    }
}

#[test]
fn full_queue_is_a_failed_store() {
    let mut full = stores(vec![Scripted::new([])], StoreAcks::First);
    full.put(key("web1"), &record(1)).unwrap();
    assert_eq!(
        outcomes(&mut full),
        [StoresOutcome::Put(Err(Failure::QueueFull(QueueFull)))]
    );
    let one = vec![Scripted::new([]), Scripted::new([Ok(Outcome::Stored)])];
    let mut one = stores(one, StoreAcks::First);
    one.put(key("web1"), &record(1)).unwrap();
    assert_eq!(outcomes(&mut one), [StoresOutcome::Put(Ok(()))]);
}

#[test]
fn newest_generation_of_all_hashes_and_stores_wins() {
    let newest = |member, generation| Ok(Lookup::Found(key(member), Box::new(record(generation))));
    let (old, new) = (value("web1", 3), value("web2", 4));
    assert_eq!(
        look_up(vec![found(&[old.clone(), new.clone()])]),
        newest("web2", 4)
    );
    assert_eq!(
        look_up(vec![found(&[new.clone(), old.clone()])]),
        newest("web2", 4)
    );
    assert_eq!(
        look_up(vec![
            found(std::slice::from_ref(&old)),
            found(std::slice::from_ref(&new))
        ]),
        newest("web2", 4)
    );
    assert_eq!(look_up(vec![found(&[new]), found(&[])]), newest("web2", 4));
    assert_eq!(look_up(vec![Err(lost()), found(&[old])]), newest("web1", 3));
}

#[test]
fn record_is_missing_only_if_every_store_says_so() {
    assert_eq!(look_up(vec![found(&[])]), Ok(Lookup::Missing));
    assert_eq!(look_up(vec![found(&[]), found(&[])]), Ok(Lookup::Missing));
    assert_eq!(look_up(vec![found(&[]), Err(lost())]), Err(lost()));
    assert_eq!(look_up(vec![Err(lost()), found(&[])]), Err(lost()));
    assert_eq!(look_up(vec![Err(lost())]), Err(lost()));
}

/// The unreadable record may be the newest.
#[test]
fn unreadable_record_is_a_failed_store() {
    let mut damaged = value("web2", 4);
    *damaged.value.last_mut().unwrap() ^= 1;
    let moved = StoredValue {
        key: key("web2"),
        ..value("web1", 5)
    };
    let unreadable = Failure::Unreadable(RecordError::Forged);
    let good = value("web1", 3);
    assert_eq!(
        look_up(vec![found(&[damaged.clone()])]),
        Err(unreadable.clone())
    );
    assert_eq!(
        look_up(vec![found(&[good.clone(), damaged.clone()])]),
        Err(unreadable.clone())
    );
    assert_eq!(look_up(vec![found(&[moved]), found(&[])]), Err(unreadable));
    let other_store = look_up(vec![found(&[damaged]), found(&[good])]);
    assert_eq!(
        other_store,
        Ok(Lookup::Found(key("web1"), Box::new(record(3))))
    );
}

#[test]
fn scan_goes_from_store_to_store() {
    let page = |values: Vec<StoredValue>, next: u64| {
        Ok(Outcome::Page(Page {
            values,
            foreign: 0,
            next: Some(Cursor(next)).filter(|next| next.0 != 0),
        }))
    };
    let mut damaged = value("web1", 2);
    damaged.value.truncate(9);
    let first = Scripted::new([page(vec![value("web1", 1)], 7), page(vec![damaged], 0)]);
    let second = Scripted::new([Err(Failure::Unsupported)]);
    let mut stores = stores(vec![first, second], StoreAcks::First);
    let mut position = Some(ScanPosition::START);
    let mut pages = Vec::new();
    while let Some(at) = position {
        stores.scan(key("web1").hash, at);
        let Some(StoresOutcome::Page(page)) = outcomes(&mut stores).pop() else {
            panic!("no page")
        };
        position = page.next;
        pages.push(page);
    }
    assert_eq!(pages.len(), 3);
    assert_eq!(pages[0].records, [(key("web1"), record(1))]);
    assert_eq!(pages[1].unreadable, [(key("web1"), RecordError::Forged)]);
    assert_eq!(pages[2].failure, Some(Failure::Unsupported));
}

#[test]
fn record_beyond_the_limits_is_not_submitted() {
    let mut stores = stores(vec![Scripted::new([])], StoreAcks::First);
    let mut long = record(1);
    long.options.window_scale = Some(15);
    assert_eq!(stores.put(key("web1"), &long), Err(RecordError::Limit));
    assert_eq!(outcomes(&mut stores), []);
}

#[test]
fn outcome_of_another_operation_is_an_error() {
    let probed = Ok(Outcome::Probed(Probe {
        product: crate::store::Product::Redis,
        version: None,
        instance: None,
        eviction: None,
        memory_limit: None,
        round_trip: std::time::Duration::ZERO,
    }));
    assert!(matches!(look_up(vec![probed]), Err(Failure::Protocol(_))));
}
