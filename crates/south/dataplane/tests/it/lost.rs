//! Events without space, because no process reads the ring. The flow shows the content of each lost
//! event.

use dataplane::EventKind;
use south_model::{DEFAULT_FIELDS, Flow, LogHalf, Restored, UnprotectedReason, expectations};
use wire::{FlowId, FlowKey, SeqNumber};

use crate::harness::*;

/// A client whose connection is known only from the record resets the connection, again and again:
/// each reset is an event.
fn fill(kernel: &Kernel) {
    let key = other_key(false, 9);
    let flow = Flow {
        id: FlowId(99),
        incarnation: 1,
        log: LogHalf {
            restored: Restored::Unconfirmed,
            ..LogHalf::default()
        },
        ..Flow::default()
    };
    kernel.plane().restore(key, &flow).expect("it is new");
    let lost = || kernel.plane().counters().expect("readable").events_lost();
    let (before, reset) = (lost(), segment(flow.server.ack, SeqNumber(0)).flags(RST));
    while lost() == before {
        for _ in 0..100 {
            kernel.ingress(&mut reset.clone().packet(key.client(), key.server()));
        }
    }
}

/// The flow of a lost event.
fn untold(both: &Both, happens: impl FnOnce(&Kernel)) -> Flow {
    fill(&both.kernel);
    happens(&both.kernel);
    let flows = both.kernel.plane().flows().expect("readable");
    let concerns = |told: &EventKind| match told {
        EventKind::Death { .. } | EventKind::Listening => false,
        EventKind::Unprotected { key, .. }
        | EventKind::Diverged { key, .. }
        | EventKind::Reprotected { key, .. }
        | EventKind::Late { key, .. } => *key == both.key,
    };
    let told = both.kernel.take_events();
    assert!(told.len() > 10_000, "{}", told.len());
    assert!(told.iter().all(|event| !concerns(&event.kind)));
    let of_ours = |(key, _): &(FlowKey, Flow)| *key == both.key;
    flows.into_iter().find(of_ours).expect("it is known").1
}

#[test]
fn a_late_handshake() {
    let mut both = Both::new();
    both.client(both.syn());
    both.server(both.syn_ack());
    both.gate();
    both.new_incarnation();
    let third = segment(both.c + 1, both.s + 1).timestamps(11, 900);
    let mut third = third.packet(both.key.client(), both.key.server());
    let flow = untold(&both, |kernel| {
        kernel.ingress(&mut third);
    });
    assert!(flow.is_late(2) && !flow.is_late(1) && !flow.has_diverged(2));
}

#[test]
fn a_contradiction() {
    let mut both = Both::new().open();
    let (c, s, s2) = (both.c + 1, both.s + 1, SeqNumber(7000));
    both.server(segment(s, c).timestamps(901, 11).payload(b"an answer"));
    both.client(segment(c, s + 9).timestamps(12, 901));
    let chunks = expectations(&[(s, b"an answer".to_vec())], &[], DEFAULT_FIELDS);
    both.expect(FlowId(1), chunks.into_iter().collect());
    both.revive(s + 9);
    both.server(both.second_syn_ack(s2));
    assert!(!both.flow().has_diverged(2));
    let other = segment(s2 + 1, c).timestamps(90, 12).payload(b"anything!");
    let mut other = other.packet(both.key.server(), both.key.client());
    let flow = untold(&both, |kernel| {
        kernel.egress(&mut other);
    });
    assert!(flow.has_diverged(2) && !flow.has_diverged(3) && !flow.is_late(2));
}

#[test]
fn an_end_of_protection() {
    let both = Both::new().open();
    let reason = UnprotectedReason::LoggerLost;
    let flow = untold(&both, |kernel| {
        let done = kernel.plane().unprotect(both.key, FlowId(1), reason.code());
        done.expect("it is known");
    });
    assert_eq!(flow.unprotected, Some(reason));
}
