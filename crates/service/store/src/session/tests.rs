use std::collections::{BTreeMap, BTreeSet};

use objects::PoolKey;
use objects::record::{HashName, MemberHash, StoreKey};
use proptest::prelude::*;
use redis_protocol::resp2::types::OwnedFrame;
use wire::FlowKey;

use super::*;
use crate::StoredValue;
use crate::resp::frame;
use crate::url::Login;
use crate::valkey::Valkey;

/// A store that performs commands, and that forgets everything at a restart.
#[derive(Default)]
struct Server {
    input: Vec<u8>,
    output: Vec<u8>,
    hash: BTreeMap<Vec<u8>, Vec<u8>>,
    run: u32,
    /// Every value that was ever written.
    written: BTreeSet<Vec<u8>>,
}

impl Server {
    fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while let Ok(Some((OwnedFrame::Array(parts), len))) = frame(&self.input) {
            self.input.drain(..len);
            let parts: Vec<Vec<u8>> = parts.into_iter().map(bulk).collect();
            let reply = self.perform(&parts);
            self.output.extend(reply);
        }
    }

    fn perform(&mut self, parts: &[Vec<u8>]) -> Vec<u8> {
        let of_bulk =
            |value: &[u8]| [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat();
        match parts[0].as_slice() {
            b"PING" => b"+PONG\r\n".to_vec(),
            b"INFO" => of_bulk(
                format!("run_id:{}\r\nmaxmemory_policy:noeviction\r\n", self.run).as_bytes(),
            ),
            b"CLIENT" if parts[1] == b"INFO" => of_bulk(b"id=3 addr=10.0.0.1:5 name="),
            b"CLIENT" => b":1\r\n".to_vec(),
            b"HSET" => {
                self.written.insert(parts[3].clone());
                self.hash.insert(parts[2].clone(), parts[3].clone());
                b":1\r\n".to_vec()
            }
            b"EXPIRE" => format!(":{}\r\n", u8::from(!self.hash.is_empty())).into_bytes(),
            b"HGET" => self
                .hash
                .get(&parts[2])
                .map_or(b"$-1\r\n".to_vec(), |value| of_bulk(value)),
            b"HDEL" => {
                format!(":{}\r\n", u8::from(self.hash.remove(&parts[2]).is_some())).into_bytes()
            }
            other => panic!("an unknown command {other:?}"),
        }
    }

    fn restart(&mut self) {
        self.run += 1;
        self.hash.clear();
        self.disconnect();
    }

    fn disconnect(&mut self) {
        self.input.clear();
        self.output.clear();
    }
}

fn bulk(frame: OwnedFrame) -> Vec<u8> {
    match frame {
        OwnedFrame::BulkString(bytes) => bytes,
        other => panic!("a command with {other:?}"),
    }
}

const TIME_LIMIT: Duration = Duration::from_millis(100);

fn settings() -> Settings {
    Settings {
        time_limit: TIME_LIMIT,
        pipeline_len: 3,
        ..Settings::default()
    }
}

fn key(port: u16) -> StoreKey {
    let flow = FlowKey::new(([10, 0, 0, 1], port).into(), ([10, 0, 0, 10], 80).into());
    StoreKey::new(
        HashName::new(flow.server(), MemberHash::of("web1", &PoolKey([1; 16]))),
        flow,
    )
}

fn put(port: u16, value: u16) -> Operation {
    Operation::Put {
        key: key(port),
        value: value.to_be_bytes().to_vec(),
    }
}

fn get(port: u16) -> Operation {
    let StoreKey { hash, flow } = key(port);
    Operation::Get {
        hashes: vec![hash],
        flow,
    }
}

/// A session, a store, and the bytes between.
struct Fixture {
    session: Session<Valkey>,
    server: Server,
    now: Duration,
    next: u64,
    completions: Vec<Completion>,
    others: Vec<Report>,
}

impl Fixture {
    fn new() -> Self {
        let settings = settings();
        Self {
            session: Session::new(Valkey::new(Login::default(), &settings), settings),
            server: Server::default(),
            now: Duration::ZERO,
            next: 0,
            completions: Vec::new(),
            others: Vec::new(),
        }
    }

    fn connected() -> Self {
        let mut fixture = Self::new();
        fixture.connect();
        fixture.exchange();
        fixture
    }

    fn connect(&mut self) {
        if self.session.poll_connect(self.now) {
            self.session.on_connected();
        }
        self.collect();
    }

    fn submit(&mut self, operation: Operation) -> Ticket {
        self.next += 1;
        self.session
            .submit(Ticket(self.next), operation, self.now, self.now);
        self.collect();
        Ticket(self.next)
    }

    fn deliver_to_server(&mut self, most: usize) {
        let len = self.session.output().len().min(most);
        self.server.receive(&self.session.output()[..len]);
        self.session.on_written(len, self.now);
    }

    fn deliver_to_client(&mut self, most: usize) {
        let len = self.server.output.len().min(most);
        let bytes: Vec<u8> = self.server.output.drain(..len).collect();
        if self.session.has_socket() && !self.session.is_connecting() {
            self.session.on_received(&bytes, self.now);
        }
        self.collect();
    }

    /// All bytes, until no more come.
    fn exchange(&mut self) {
        while !self.session.output().is_empty() || !self.server.output.is_empty() {
            self.deliver_to_server(usize::MAX);
            self.deliver_to_client(usize::MAX);
        }
    }

    fn lose(&mut self) {
        self.session.on_failure("reset", self.now);
        self.server.disconnect();
        self.collect();
    }

    fn advance(&mut self, duration: Duration) {
        self.now += duration;
        self.session.on_time(self.now);
        if !self.session.has_socket() {
            self.server.disconnect();
        }
        self.collect();
    }

    fn collect(&mut self) {
        for report in self.session.reports() {
            match report {
                Report::Completed(completion) => self.completions.push(completion),
                other => self.others.push(other),
            }
        }
    }

    fn result(&self, ticket: Ticket) -> Option<&Result<Outcome, Failure>> {
        self.completions
            .iter()
            .find(|completion| completion.ticket == ticket)
            .map(|completion| &completion.result)
    }
}

#[derive(Debug, Clone)]
enum Event {
    Put(u16),
    Get(u16),
    Delete(u16),
    Connect,
    ToServer(usize),
    ToClient(usize),
    Lose,
    Restart,
    Advance(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_u16..3).prop_map(Event::Put),
        2 => (0_u16..3).prop_map(Event::Get),
        1 => (0_u16..3).prop_map(Event::Delete),
        3 => Just(Event::Connect),
        5 => (1_usize..300).prop_map(Event::ToServer),
        5 => (1_usize..300).prop_map(Event::ToClient),
        1 => Just(Event::Lose),
        1 => Just(Event::Restart),
        2 => (1_u64..150).prop_map(Event::Advance),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever the network and the store do: each operation has one outcome, a confirmed put was written, and a value
    /// that is found was written.
    #[test]
    fn confirmed_puts_were_written(events in prop::collection::vec(event(), 1..80)) {
        let mut fixture = Fixture::new();
        let mut values = BTreeMap::new();
        for (number, event) in (0_u16..).zip(events) {
            match event {
                Event::Put(port) => {
                    let ticket = fixture.submit(put(port, number));
                    values.insert(ticket, number.to_be_bytes().to_vec());
                }
                Event::Get(port) => drop(fixture.submit(get(port))),
                Event::Delete(port) => drop(fixture.submit(Operation::Delete { key: key(port) })),
                Event::Connect => fixture.connect(),
                Event::ToServer(len) => fixture.deliver_to_server(len),
                Event::ToClient(len) => fixture.deliver_to_client(len),
                Event::Lose => fixture.lose(),
                Event::Restart => {
                    fixture.server.restart();
                    fixture.lose();
                }
                Event::Advance(ms) => fixture.advance(Duration::from_millis(ms)),
            }
        }
        fixture.advance(TIME_LIMIT);
        prop_assert_eq!(fixture.completions.len() as u64, fixture.next);
        let tickets: BTreeSet<Ticket> = fixture.completions.iter().map(|completion| completion.ticket).collect();
        prop_assert_eq!(tickets.len() as u64, fixture.next);
        for completion in &fixture.completions {
            match &completion.result {
                Ok(Outcome::Stored) => prop_assert!(fixture.server.written.contains(&values[&completion.ticket])),
                Ok(Outcome::Found(found)) => for StoredValue { value, .. } in found {
                    prop_assert!(fixture.server.written.contains(value));
                }
                _ => {}
            }
        }
        let counted: u64 = fixture.session.statistics().operations().map(|(_, _, count)| count).sum();
        prop_assert_eq!(counted, fixture.next);
    }
}

#[test]
fn operations_are_performed_in_order() {
    let mut fixture = Fixture::connected();
    let tickets: Vec<Ticket> = (0..10).map(|value| fixture.submit(put(1, value))).collect();
    let read = fixture.submit(get(1));
    fixture.exchange();
    assert!(
        tickets
            .iter()
            .all(|ticket| fixture.result(*ticket) == Some(&Ok(Outcome::Stored)))
    );
    let value = StoredValue {
        key: key(1),
        value: 9_u16.to_be_bytes().to_vec(),
    };
    assert_eq!(fixture.result(read), Some(&Ok(Outcome::Found(vec![value]))));
}

#[test]
fn late_reply_is_dropped_and_the_next_is_taken() {
    let mut fixture = Fixture::connected();
    let late = fixture.submit(put(1, 1));
    fixture.deliver_to_server(usize::MAX);
    fixture.advance(TIME_LIMIT);
    assert_eq!(fixture.result(late), Some(&Err(Failure::TimedOut)));
    let next = fixture.submit(get(1));
    fixture.exchange();
    assert!(matches!(fixture.result(next), Some(Ok(Outcome::Found(values))) if values.len() == 1));
    assert_eq!(fixture.session.statistics().late_replies, 1);
    assert_eq!(fixture.completions.len(), 2);
}

#[test]
fn silent_store_is_connected_anew() {
    let mut fixture = Fixture::connected();
    fixture.submit(put(1, 1));
    fixture.deliver_to_server(usize::MAX);
    fixture.advance(TIME_LIMIT * STALL_FACTOR);
    assert!(!fixture.session.has_socket());
    assert_eq!(
        fixture.others.last(),
        Some(&Report::Lost(Failure::TimedOut))
    );
    fixture.advance(Duration::from_secs(1));
    fixture.connect();
    let greeting = String::from_utf8(fixture.session.output().to_vec()).unwrap();
    assert!(
        greeting.contains("KILL\r\n$2\r\nID\r\n$1\r\n3\r\n$4\r\nADDR\r\n$10\r\n10.0.0.1:5"),
        "{greeting}"
    );
}

#[test]
fn operations_fail_at_once_while_the_store_is_lost() {
    let mut fixture = Fixture::new();
    let early = fixture.submit(get(1));
    assert_eq!(
        fixture.result(early),
        None,
        "the first attempt is under way"
    );
    assert!(fixture.session.poll_connect(fixture.now));
    fixture.lose();
    let reset = Failure::Unreachable("reset".to_owned());
    assert_eq!(fixture.result(early), Some(&Err(reset.clone())));
    let late = fixture.submit(get(1));
    assert_eq!(fixture.result(late), Some(&Err(reset.clone())));
    assert_eq!(fixture.others, [Report::Lost(reset)], "once");
}

#[test]
fn pauses_between_attempts_double_up_to_the_longest() {
    let mut fixture = Fixture::new();
    let mut pauses = Vec::new();
    for _ in 0..9 {
        assert!(fixture.session.poll_connect(fixture.now));
        fixture.lose();
        let Link::Down { retry_at, .. } = fixture.session.link else {
            panic!("connected")
        };
        pauses.push((retry_at - fixture.now).as_millis());
        fixture.now = retry_at;
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
}

#[test]
fn other_instance_of_the_store_is_reported() {
    let mut fixture = Fixture::connected();
    fixture.lose();
    fixture.advance(Duration::from_secs(1));
    fixture.connect();
    fixture.exchange();
    fixture.server.restart();
    fixture.lose();
    fixture.advance(Duration::from_secs(1));
    fixture.connect();
    fixture.exchange();
    let connected = |report: &Report| match report {
        Report::Connected { is_other_instance } => Some(*is_other_instance),
        _ => None,
    };
    let connected: Vec<bool> = fixture.others.iter().filter_map(connected).collect();
    assert_eq!(connected, [false, false, true]);
}

#[test]
fn half_a_reply_does_not_reach_the_next_connection() {
    let mut fixture = Fixture::connected();
    let lost = fixture.submit(get(1));
    fixture.deliver_to_server(usize::MAX);
    fixture.deliver_to_client(2);
    fixture.lose();
    assert!(matches!(
        fixture.result(lost),
        Some(Err(Failure::ConnectionLost(_)))
    ));
    fixture.advance(Duration::from_secs(1));
    fixture.connect();
    let next = fixture.submit(get(1));
    fixture.exchange();
    assert_eq!(fixture.result(next), Some(&Ok(Outcome::Found(Vec::new()))));
}

#[test]
fn foreign_bytes_end_the_connection() {
    for bytes in [
        &b"HTTP/1.1 400 Bad Request\r\n"[..],
        b":1\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
    ] {
        let mut fixture = Fixture::connected();
        fixture.session.on_received(bytes, fixture.now);
        fixture.collect();
        assert!(
            matches!(
                fixture.others.last(),
                Some(Report::Lost(Failure::Protocol(_)))
            ),
            "{:?}",
            fixture.others
        );
        assert!(!fixture.session.has_socket());
    }
}

#[test]
fn look_up_in_no_hash_finds_no_record() {
    let mut fixture = Fixture::connected();
    let ticket = fixture.submit(Operation::Get {
        hashes: Vec::new(),
        flow: key(1).flow,
    });
    assert_eq!(
        fixture.result(ticket),
        Some(&Ok(Outcome::Found(Vec::new())))
    );
}
