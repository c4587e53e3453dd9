//! `control.h`, as far as packets do not show the effects.

use dataplane::SplicePoint;
use protocol::mirror::{CloseReason, FrameKind};
use south_model::{Mode, UnprotectedReason};
use wire::FlowId;

use crate::harness::*;

#[test]
fn a_flow_that_is_not_there_is_refused() {
    let mut both = Both::new();
    let key = both.key;
    let point = SplicePoint {
        instream: both.c,
        outstream: both.s,
        verify_end: both.s,
    };
    assert!(!both.splice_at(key, point));
    assert!(!both.abandon(key));
    assert!(!both.unprotect(key, UnprotectedReason::TotalLimit));
    let error = both
        .kernel
        .plane()
        .abandon(key, FlowId(1))
        .expect_err("it is not there");
    assert!(
        error
            .to_string()
            .contains("abandon a flow was refused: No such file"),
        "{error}"
    );
}

/// One check for all operations on a flow.
#[test]
fn what_is_meant_for_an_earlier_connection_is_refused() {
    let mut both = Both::new().open();
    let key = both.key;
    assert!(!both.abandon_numbered(key, FlowId(0)));
    assert!(!both.abandon_numbered(key, FlowId(2)));
    assert!(both.abandon_numbered(key, FlowId(1)));
}

#[test]
fn an_abandoned_flow_is_forgotten_and_recorded_as_evicted() {
    let mut both = Both::new().open();
    both.frames();
    let key = both.key;
    assert!(both.abandon(key));
    let [frame] = &both.frames()[..] else {
        panic!("one frame")
    };
    assert_eq!(
        (frame.kind, frame.flow_id),
        (FrameKind::Closed(CloseReason::Evicted), 1)
    );
    assert_eq!(
        both.client(segment(both.c + 1, both.s + 1).payload(b"x"))
            .verdict,
        Next
    );
    assert_eq!(
        (both.counted("untracked"), both.model.flows().count()),
        (1, 0)
    );
}

#[test]
fn an_unprotected_flow_is_recorded_no_more() {
    let mut both = Both::new().open();
    both.frames();
    let key = both.key;
    assert!(both.unprotect(key, UnprotectedReason::ConnectionLimit));
    both.client(
        segment(both.c + 1, both.s + 1)
            .timestamps(12, 900)
            .payload(b"x"),
    );
    both.server(
        segment(both.s + 1, both.c + 2)
            .timestamps(901, 12)
            .payload(b"y"),
    );
    assert!(both.frames().is_empty());
    assert_eq!(
        both.flow().unprotected,
        Some(UnprotectedReason::ConnectionLimit)
    );
}

#[test]
fn a_barrier_comes_after_what_was_recorded_before() {
    let mut both = Both::new().open();
    both.client(
        segment(both.c + 1, both.s + 1)
            .timestamps(12, 900)
            .payload(b"x"),
    );
    assert!(both.barrier(0x1234_5678_9abc_def0));
    let kinds: Vec<FrameKind> = both.frames().iter().map(|frame| frame.kind).collect();
    let barrier = FrameKind::Barrier {
        token: 0x1234_5678_9abc_def0,
    };
    assert_eq!(kinds[1..], [FrameKind::Instream, barrier]);
}

#[test]
fn a_splice_forgets_the_comparison_before_it() {
    let mut both = Both::new().open();
    both.splice(both.s + 5);
    both.revive(both.s + 100);
    let flow = both.flow();
    assert_eq!(
        (flow.mode, flow.splice.delta_seq, flow.incarnation),
        (Mode::Splicing, 0, 3)
    );
    assert_eq!((flow.verify.end, flow.verify.compared), (both.s + 100, 0));
}

#[test]
fn a_sweep_leaves_what_is_open() {
    let mut both = Both::new().open();
    assert_eq!(both.sweep(), 0);
    assert_eq!(both.model.flows().count(), 1);
}
