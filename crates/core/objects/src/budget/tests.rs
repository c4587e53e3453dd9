use alloc::vec::Vec;
use core::net::SocketAddr;

use wire::{ChecksumMode, Flags, FlowKey, OptionsBuffer, SegmentSpec, SeqNumber, TcpOption};

use super::*;
use crate::isn::Slot;
use crate::plane::CopyKind;
use crate::timestamp::index::Index;
use crate::timestamp::{ClientOptions, LaterPosition};

const NOW_SINCE_BOOT: Duration = Duration::from_secs(100);

/// A segment of this client.
fn copy(client: impl Into<SocketAddr>, state: Option<State>) -> SegmentCopy {
    let (client, server) = (client.into(), SocketAddr::from(([10, 0, 0, 10], 80)));
    let server = if client.is_ipv6() {
        "[fd00::10]:80".parse().unwrap()
    } else {
        server
    };
    let mut options = OptionsBuffer::new();
    if let Some(state) = state {
        let index = Index::new(1);
        let echo = Timestamp { index, state }.to_wire();
        let option = TcpOption::Timestamps { value: 1, echo };
        options.push(&option).unwrap();
    }
    let spec = SegmentSpec {
        source: client,
        destination: server,
        seq: SeqNumber(1),
        ack: SeqNumber(1),
        flags: Flags::ACK,
        window: 100,
        options: options.as_slice(),
        payload: b"GET / HTTP/1.1\r\n\r\n",
    };
    let mut packet = Vec::new();
    spec.emit(&mut packet, ChecksumMode::Full).unwrap();
    SegmentCopy {
        key: FlowKey::new(client, server),
        kind: CopyKind::Unknown,
        interface: 1,
        packet_len: packet.len(),
        packet,
    }
}

fn later() -> State {
    State::Later {
        options: ClientOptions::of_number(0),
        is_odd: false,
        position: LaterPosition::Far { distance: 1 },
    }
}

/// How many of `count` segments of sources are allowed.
fn allowed(
    budget: &mut Budget,
    now: Duration,
    count: u32,
    segment: impl Fn(u32) -> SegmentCopy,
) -> u32 {
    let allows = |number: u32| u32::from(budget.allows(now, &segment(number)));
    (0..count).map(allows).sum()
}

fn of_one_source(_: u32) -> SegmentCopy {
    copy(([192, 0, 2, 1], 4000), Some(later()))
}

fn of_any_source(number: u32) -> SegmentCopy {
    copy((number.to_be_bytes(), 4000), None)
}

#[test]
fn segment_with_a_proven_echo_is_never_dropped() {
    let mut budget = Budget::default();
    allowed(&mut budget, NOW_SINCE_BOOT, 2 * TOTAL_BURST, of_any_source);
    let (slot, options) = (Slot::new(1), ClientOptions::of_number(0));
    let agreed = State::Agreed {
        slot,
        options,
        tag: 1,
    };
    let stored = State::Stored {
        slot,
        options,
        turn: 1,
        tag: 1,
    };
    for state in [agreed, stored] {
        assert!(budget.allows(NOW_SINCE_BOOT, &copy(([192, 0, 2, 1], 4000), Some(state))));
    }
    assert!(!budget.allows(NOW_SINCE_BOOT, &of_one_source(0)));
}

#[test]
fn source_gets_its_burst_and_its_rate() {
    let mut budget = Budget::default();
    let first = allowed(&mut budget, NOW_SINCE_BOOT, 2 * SOURCE_BURST, of_one_source);
    assert_eq!(first, SOURCE_BURST);
    assert_eq!(budget.take_dropped(), SOURCE_BURST.into());
    assert_eq!(budget.take_dropped(), 0);
    let later = NOW_SINCE_BOOT + SOURCE_INTERVAL * 100;
    assert_eq!(allowed(&mut budget, later, 200, of_one_source), 100);
    assert!(budget.allows(later, &copy(([192, 0, 2, 2], 4000), None)));
}

#[test]
fn all_sources_together_get_the_total() {
    let mut budget = Budget::default();
    let first = allowed(&mut budget, NOW_SINCE_BOOT, 2 * TOTAL_BURST, of_any_source);
    assert_eq!(first, TOTAL_BURST);
    assert!(budget.sources.len() <= SOURCES_MAX);
    let later = NOW_SINCE_BOOT + TOTAL_INTERVAL * 100;
    let segment = |number| of_any_source(number + (1 << 24));
    assert_eq!(allowed(&mut budget, later, 200, segment), 100);
}

#[test]
fn network_of_ipv6_is_one_source() {
    let mut budget = Budget::default();
    let segment = |number: u32| {
        let host: SocketAddr = std::format!("[2001:db8::{number:x}]:4000").parse().unwrap();
        copy(host, Some(later()))
    };
    let count = SOURCE_BURST + 100;
    assert_eq!(
        allowed(&mut budget, NOW_SINCE_BOOT, count, segment),
        SOURCE_BURST
    );
}

/// The queues of clients take nothing of the budget of revivals.
#[test]
fn bytes_that_wait_have_a_budget_of_their_own() {
    let mut budget = Budget::default();
    let burst = usize::try_from(QUEUED_BURST).unwrap();
    let at_once = (0..burst + 100).filter(|_| budget.allows_queued(NOW_SINCE_BOOT));
    assert_eq!(at_once.count(), burst);
    assert!(budget.allows(NOW_SINCE_BOOT, &copy(([10, 0, 0, 1], 1), Some(later()))));
    assert!(budget.allows_queued(NOW_SINCE_BOOT + QUEUED_INTERVAL));
}
