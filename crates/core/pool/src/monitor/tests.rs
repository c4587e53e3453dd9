use core::num::NonZeroU16;
use std::vec;

use protocol::pool::{
    Encapsulation, Granter, Hello, MemberAddress, MembershipState, PoolKey, VersionCheck,
};

use super::*;
use crate::MemoryRegister;

const LEASE_TERM: Duration = Duration::from_millis(100);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn settings() -> Settings {
    let terms = Terms {
        term: LEASE_TERM,
        least: LEASE_TERM,
        ..Terms::of_pool()
    };
    let config = Config {
        addresses: vec!["10.0.0.10:80".parse().unwrap()],
        term_us: 100_000,
        least_term_us: 100_000,
        drift_ppm: terms.drift.parts_per_million(),
        queue_us: 10_000,
        quiescence_ms: 130_000,
        key: PoolKey([7; 16]),
        version_check: VersionCheck::Etag,
        store: None,
        encapsulation: None,
    };
    Settings {
        kind: TableKind::Maglev,
        terms,
        config,
        balancer: None,
    }
}

fn table(epoch: u64, members: Vec<TableMember>) -> Table {
    Table {
        epoch,
        kind: TableKind::Maglev,
        members,
        granters: vec![],
    }
}

/// A monitor, and its outputs. The address of a member follows from its membership.
struct Balancer {
    monitor: Monitor<MemoryRegister>,
    sent: Vec<(StreamId, BalancerMessage)>,
    events: Vec<Event>,
    closed: Vec<StreamId>,
}

impl Balancer {
    /// A balancer that has waited for the leases of unknown members.
    fn new() -> Self {
        Self::with(table(9, vec![]))
    }

    fn with(table: Table) -> Self {
        let register = MemoryRegister::new(table.clone());
        Self {
            monitor: Monitor::new(settings(), register, table, ms(0)),
            sent: vec![],
            events: vec![],
            closed: vec![],
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.monitor.output() {
            match output {
                Output::Send { stream, message } => self.sent.push((stream, message)),
                Output::Event(event) => self.events.push(event),
                Output::Close { stream } => self.closed.push(stream),
                Output::Table(table) => assert!(table.epoch <= self.monitor.table().epoch),
            }
        }
    }

    fn hello(&mut self, now: u64, stream: u64, hello: Hello) {
        let message = MemberMessage::Hello(hello);
        self.monitor.on_message(ms(now), StreamId(stream), message);
        self.drain();
    }

    fn asks(&mut self, now: u64, stream: u64) {
        let message = MemberMessage::LeaseRequest {
            number: now * 1_000_000,
            answered: 0,
        };
        self.monitor.on_message(ms(now), StreamId(stream), message);
        self.drain();
    }

    /// A member with the stream of the number of its membership joins.
    fn joins(&mut self, now: u64, name: &str, membership: u8) {
        self.hello(now, membership.into(), hello(name, membership));
        self.asks(now, membership.into());
    }

    fn time(&mut self, now: u64) -> Vec<Event> {
        self.monitor.on_time(ms(now));
        self.drain();
        core::mem::take(&mut self.events)
    }

    fn names(&self) -> Vec<&str> {
        let members = self.monitor.table().members.iter();
        members.map(|member| member.name.as_str()).collect()
    }

    fn refusal(&mut self) -> Option<Refused> {
        let (_, message) = self.sent.pop()?;
        match message {
            BalancerMessage::Refused { reason } => Some(reason),
            _ => None,
        }
    }
}

fn hello(name: &str, membership: u8) -> Hello {
    Hello {
        name: name.parse().unwrap(),
        membership: membership.into(),
        state: MembershipState::New,
        address: MemberAddress::new([10, 0, 0, membership].into()).unwrap(),
        claim_port: NonZeroU16::MAX,
        epoch: 0,
    }
}

fn name(text: &str) -> MemberName {
    text.parse().unwrap()
}

#[test]
fn member_is_in_table_from_its_first_lease_on() {
    let mut balancer = Balancer::new();
    balancer.hello(3000, 1, hello("a", 1));
    assert_eq!(balancer.names(), [""; 0]);
    let answers: Vec<_> = balancer.sent.iter().map(|(_, message)| message).collect();
    assert!(matches!(
        answers[..],
        [BalancerMessage::Config(_), BalancerMessage::Table(_)]
    ));
    balancer.asks(3000, 1);
    assert_eq!(balancer.names(), ["a"]);
    assert_eq!(balancer.monitor.table().epoch, 10);
    let newest = balancer.sent.pop().unwrap();
    let told = BalancerMessage::Table(balancer.monitor.table().clone());
    assert_eq!(newest, (StreamId(1), told));
}

#[test]
fn balancer_without_table_waits_for_leases_of_unknown_members() {
    let mut balancer = Balancer::new();
    balancer.joins(0, "a", 1);
    balancer.asks(50, 1);
    assert_eq!(balancer.names(), [""; 0]);
    for now in (100..2200).step_by(50) {
        balancer.asks(now, 1);
        let in_table = !balancer.names().is_empty();
        assert_eq!(in_table, ms(now) >= balancer.monitor.settled_at, "{now}");
    }
    assert_eq!(balancer.names(), ["a"]);
}

#[test]
fn lost_stream_is_no_death() {
    let mut balancer = Balancer::new();
    balancer.joins(3000, "a", 1);
    balancer.joins(3000, "b", 2);
    balancer.monitor.on_stream_lost(StreamId(1));
    balancer.events.clear();
    assert_eq!(balancer.time(3050), [Event::StreamLost { name: name("a") }]);
    let again = Hello {
        state: MembershipState::Speaks,
        ..hello("a", 1)
    };
    balancer.hello(3060, 11, again);
    balancer.asks(3060, 11);
    balancer.asks(3100, 2);
    assert_eq!(balancer.time(3150), []);
    assert_eq!(balancer.names(), ["a", "b"]);
}

/// 100 ms and 10 ms for queues, and a thousandth of both for the clock.
#[test]
fn silent_member_is_declared_dead_when_its_lease_is_over() {
    let mut balancer = Balancer::new();
    balancer.joins(3000, "a", 1);
    balancer.joins(3000, "b", 2);
    balancer.asks(3090, 2);
    balancer.events.clear();
    assert_eq!(balancer.time(3110), []);
    assert_eq!(
        balancer.monitor.due_at(),
        Some(Duration::from_micros(3_110_110))
    );
    let dead = Event::DeclaredDead {
        name: name("a"),
        silent: ms(111),
    };
    assert_eq!(balancer.time(3111), [dead]);
    assert_eq!(balancer.names(), ["b"]);
    assert_eq!(balancer.closed, [StreamId(1)]);
    let again = Hello {
        state: MembershipState::Silent,
        ..hello("a", 1)
    };
    balancer.hello(3120, 11, again);
    assert_eq!(balancer.refusal(), Some(Refused::Dead));
    balancer.joins(3130, "a", 3);
    assert_eq!(balancer.names(), ["a", "b"]);
}

#[test]
fn leaving_member_is_gone_after_the_queue() {
    let mut balancer = Balancer::new();
    balancer.joins(3000, "a", 1);
    balancer.joins(3000, "b", 2);
    balancer.events.clear();
    for _ in 0..2 {
        balancer.monitor.drain(ms(3000), &name("b")).unwrap();
    }
    let draining = Event::Draining { name: name("b") };
    assert_eq!(balancer.time(3000), [draining]);
    for stream in [1, 2] {
        let leave = MemberMessage::Leave;
        balancer
            .monitor
            .on_message(ms(3001), StreamId(stream), leave);
    }
    assert_eq!(balancer.time(3011), []);
    let gone = [
        Event::Left { name: name("a") },
        Event::Drained { name: name("b") },
    ];
    assert_eq!(balancer.time(3012), gone);
    assert_eq!(balancer.names(), [""; 0]);
}

#[test]
fn member_that_leaves_before_its_first_lease_causes_no_event() {
    let mut balancer = Balancer::new();
    balancer.hello(3000, 1, hello("a", 1));
    balancer.events.clear();
    balancer
        .monitor
        .on_message(ms(3001), StreamId(1), MemberMessage::Leave);
    assert_eq!(balancer.time(4000), []);
    assert_eq!(balancer.names(), [""; 0]);
}

#[test]
fn last_member_with_new_connections_is_not_drained() {
    let mut balancer = Balancer::new();
    balancer.joins(3000, "a", 1);
    let drain = |balancer: &mut Balancer, of| balancer.monitor.drain(ms(3000), &name(of));
    assert_eq!(drain(&mut balancer, "a"), Err(DrainError::LastMember));
    assert_eq!(drain(&mut balancer, "x"), Err(DrainError::Unknown));
    balancer.joins(3000, "b", 2);
    assert_eq!(drain(&mut balancer, "a"), Ok(()));
    let draining: Vec<bool> = balancer
        .monitor
        .table()
        .members
        .iter()
        .map(|member| member.draining)
        .collect();
    assert_eq!(draining, [true, false]);
    assert_eq!(drain(&mut balancer, "b"), Err(DrainError::LastMember));
}

#[test]
fn second_member_of_a_name_or_address_is_refused() {
    let mut balancer = Balancer::new();
    balancer.joins(3000, "a", 1);
    let other = |name: &str, membership, address| Hello {
        address: MemberAddress::new([10, 0, 0, address].into()).unwrap(),
        ..hello(name, membership)
    };
    for (hello, reason) in [
        (other("a", 2, 2), Refused::NameTaken),
        (other("b", 1, 2), Refused::MembershipTaken),
        (other("b", 2, 1), Refused::AddressTaken),
    ] {
        balancer.hello(3010, 5, hello);
        assert_eq!(balancer.refusal(), Some(reason));
        assert_eq!(balancer.closed.pop(), Some(StreamId(5)));
    }
    assert_eq!(balancer.names(), ["a"]);
}

#[test]
fn messages_out_of_order_end_the_stream() {
    let mut balancer = Balancer::new();
    balancer.asks(3000, 5);
    assert_eq!(balancer.refusal(), Some(Refused::OutOfOrder));
    balancer.joins(3000, "a", 1);
    balancer.hello(3001, 1, hello("a", 1));
    assert_eq!(balancer.refusal(), Some(Refused::OutOfOrder));
    assert_eq!(balancer.closed, [StreamId(5), StreamId(1)]);
}

#[test]
fn ipv4_member_of_an_ipv6_service_is_refused() {
    let mut balancer = Balancer::new();
    let addresses = &mut balancer.monitor.settings.config.addresses;
    addresses.push("[fd00::10]:80".parse().unwrap());
    balancer.hello(3000, 1, hello("a", 1));
    assert_eq!(balancer.refusal(), Some(Refused::NeedsIpv6));
}

/// An IPv4 datagram carries IPv6.
#[test]
fn ipv4_member_behind_routers_serves_ipv6() {
    let mut balancer = Balancer::new();
    let config = &mut balancer.monitor.settings.config;
    config.addresses.push("[fd00::10]:80".parse().unwrap());
    config.encapsulation = Some(Encapsulation::Udp);
    balancer.joins(3000, "a", 1);
    assert_eq!(balancer.names(), ["a"]);
}

#[test]
fn member_behind_routers_with_other_family_is_refused() {
    let mut balancer = Balancer::new();
    balancer.monitor.settings.config.encapsulation = Some(Encapsulation::Udp);
    balancer.joins(3000, "a", 1);
    let address = MemberAddress::new("fd00::2".parse().unwrap()).unwrap();
    let other = Hello {
        address,
        ..hello("b", 2)
    };
    balancer.hello(3000, 2, other);
    assert_eq!(balancer.refusal(), Some(Refused::OtherFamily));
    balancer.joins(3000, "c", 3);
    assert_eq!(balancer.names(), ["a", "c"]);
}

/// The former life may have granted a lease at its last moment, and may have declared other memberships dead.
#[test]
fn restarted_balancer_keeps_its_table() {
    let mut balancer = Balancer::new();
    balancer.joins(3000, "a", 1);
    balancer.joins(3000, "b", 2);
    let mut balancer = Balancer::with(balancer.monitor.table().clone());
    assert_eq!(balancer.names(), ["a", "b"]);
    let continues = |name: &str, membership| Hello {
        state: MembershipState::Silent,
        ..hello(name, membership)
    };
    balancer.hello(500, 1, continues("a", 1));
    balancer.hello(500, 3, continues("c", 3));
    assert_eq!(balancer.refusal(), Some(Refused::Dead));
    balancer.joins(500, "d", 4);
    assert_eq!(balancer.names(), ["a", "b", "d"]);
    for now in (550..2000).step_by(50) {
        balancer.asks(now, 1);
        balancer.asks(now, 4);
        balancer.time(now);
        assert_eq!(balancer.names(), ["a", "b", "d"]);
    }
    balancer.asks(2050, 1);
    balancer.asks(2050, 4);
    balancer.time(2100);
    assert_eq!(balancer.names(), ["a", "d"]);
}

/// A writer that was first.
#[test]
fn table_of_another_writer_is_adopted_before_the_next_proposal() {
    let mut balancer = Balancer::new();
    let theirs = TableMember {
        name: name("z"),
        membership: 77,
        address: MemberAddress::new([10, 0, 0, 77].into()).unwrap(),
        claim_port: NonZeroU16::MAX,
        draining: false,
    };
    balancer
        .monitor
        .register
        .propose(9, table(12, vec![theirs]));
    balancer.monitor.register.outcome();
    balancer.joins(3000, "a", 1);
    assert_eq!(balancer.names(), ["a", "z"]);
    assert_eq!(balancer.monitor.table().epoch, 13);
}

/// The first balancer is dead with a member that the second balancer has never heard.
#[test]
fn member_is_dead_by_the_word_of_the_operator_after_a_takeover() {
    let mut first = Balancer::new();
    first.joins(3000, "a", 1);
    first.joins(3000, "b", 2);
    let mut table = first.monitor.table().clone();
    table.granters = vec![Granter {
        balancer: BalancerId(1),
        settled: true,
    }];
    let settings = Settings {
        balancer: Some(BalancerId(2)),
        ..settings()
    };
    let register = MemoryRegister::new(table.clone());
    let epoch = table.epoch;
    let mut second = Balancer::new();
    second.monitor = Monitor::new(settings, register, table, ms(0));
    let continues = Hello {
        state: MembershipState::Silent,
        epoch,
        ..hello("a", 1)
    };
    second.hello(0, 1, continues);
    let enforces = |second: &mut Balancer, now, lacks: &[u64]| {
        let epoch = second.monitor.table().epoch;
        let lacks = lacks.iter().copied().map(BalancerId).collect();
        let message = MemberMessage::Enforces { epoch, lacks };
        second.monitor.on_message(ms(now), StreamId(1), message);
        second.asks(now, 1);
    };
    assert!(!second.monitor.is_granter());
    enforces(&mut second, 10, &[1]);
    assert!(second.monitor.is_granter());
    for now in (20..5000).step_by(50) {
        enforces(&mut second, now, &[]);
        assert_eq!(second.time(now), []);
    }
    let unknown: Vec<bool> = second.monitor.members().map(|it| it.is_unknown).collect();
    assert_eq!(unknown, [false, true]);
    let mut confirm = |of| second.monitor.confirm_dead(ms(5000), &name(of));
    assert_eq!(confirm("a"), Err(ConfirmError::Alive));
    assert_eq!(confirm("x"), Err(ConfirmError::Unknown));
    assert_eq!(confirm("b"), Ok(()));
    assert_eq!(second.names(), ["a"]);
}
