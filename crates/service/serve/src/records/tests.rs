use std::net::{Ipv4Addr, SocketAddr};

use recovery::{Action, Cause, Config, Event, Recovery};
use wire::SeqNumber;

use super::*;

const CLIENT: SeqNumber = SeqNumber(u32::MAX);
const SERVER: SeqNumber = SeqNumber(70);

fn key() -> FlowKey {
    let at = |host, port| SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), port));
    FlowKey::new(at(1, 4000), at(2, 80))
}

/// A connection whose handshake was completed, and of whose client the server's TCP has
/// acknowledged `received` bytes.
fn flow(received: u32) -> Flow {
    let mut flow = Flow {
        id: FlowId(5),
        incarnation: 1,
        ..Flow::default()
    };
    flow.client.isn = CLIENT;
    flow.server.isn = SERVER;
    flow.server.ack = CLIENT + 1 + received;
    flow
}

fn summary(stable_seq: SeqNumber) -> RecordSummary {
    RecordSummary {
        stable_seq,
        doubt: stable_seq,
        ..RecordSummary::fresh(FlowId(5), CLIENT, SERVER)
    }
}

/// Recovery of the connection after the death of the server.
fn recovered(candidate: Candidate) -> (Vec<Action>, Vec<Event>) {
    let now = std::time::Duration::from_secs(1);
    let mut recovery = Recovery::new(Config::default());
    recovery.on_death(Cause::NotServing, now, now);
    recovery.service_empty(now);
    recovery.listening(now);
    recovery.drained(1);
    recovery.connections(vec![candidate], now);
    (
        std::iter::from_fn(|| recovery.next_action()).collect(),
        std::iter::from_fn(|| recovery.next_event()).collect(),
    )
}

fn is_kept(candidate: Candidate) -> bool {
    let (actions, events) = recovered(candidate);
    let spliced = |action: &Action| matches!(action, Action::Splice { .. });
    let lost = |event: &Event| matches!(event, Event::ConnectionReset { .. });
    assert_ne!(actions.iter().any(spliced), events.iter().any(lost));
    actions.iter().any(spliced)
}

#[test]
fn fresh_connection_without_record_is_recovered() {
    let candidate = Records::of(&[]).candidate(key(), flow(0));
    assert_eq!(
        candidate.record,
        Some(summary(CLIENT + 1)),
        "as if newly opened"
    );
    assert!(is_kept(candidate));
}

#[test]
fn connection_without_record_is_reset() {
    for received in [1, 1 << 20, 3 << 30] {
        assert!(!is_kept(Records::of(&[]).candidate(key(), flow(received))));
    }
}

#[test]
fn present_record_is_used() {
    let records = Records::of(&[summary(CLIENT + 8)]);
    let candidate = records.candidate(key(), flow(7));
    assert_eq!(candidate.record.map(|r| r.stable_seq), Some(CLIENT + 8));
    assert!(is_kept(candidate));
}
