use super::*;
use crate::testing::*;

#[test]
fn the_life_of_a_service() {
    let mut lab = Lab::new();
    lab.south.main_process(42);
    lab.south.gate(7);
    lab.south.gate(8);
    let service = *lab.south.service();
    assert_eq!(
        (service.gated, service.gated_ns, service.main_pid),
        (true, 7, 42)
    );
    lab.south.new_incarnation();
    let service = *lab.south.service();
    assert_eq!(
        (service.gated, service.recovering, service.incarnation),
        (false, true, 2)
    );
    lab.south.recovered();
    lab.south.stopping(true);
    lab.south.heartbeat(9);
    let service = *lab.south.service();
    assert_eq!(
        (service.recovering, service.stopping, service.heartbeat_ns),
        (false, true, 9)
    );
}

#[test]
fn silence_opens_the_gate_and_a_heartbeat_from_the_future_does_not() {
    let mut lab = Lab::new();
    lab.crash();
    assert!(lab.south.shared.service_gated(lab.now + 10 * SECOND));
    assert!(!lab.south.shared.service_gated(lab.now + 10 * SECOND + 1));
    assert!(lab.south.shared.service_gated(lab.now - 1));
}

#[test]
fn a_splice_begins_anew() {
    let mut lab = Lab::new().open();
    lab.crash();
    lab.splice(SeqNumber(7_000));
    let flow = lab.south.flows.get_mut(&lab.key).unwrap();
    flow.closed_ns = 5;
    flow.verify.compared = 5;
    flow.verify.tolerated = 5;
    flow.verify.unverified = 5;
    flow.verify.head_left = 5;
    lab.south.new_incarnation();
    let (instream, outstream, end) = (SeqNumber(u32::MAX), SeqNumber(2), SeqNumber(3));
    lab.south
        .splice(lab.key, FlowId(1), instream, outstream, end, 0)
        .unwrap();
    let flow = lab.flow();
    assert_eq!(
        (flow.mode, flow.incarnation, flow.closed_ns),
        (Mode::Splicing, 3, 0)
    );
    let zero = SeqNumber(0);
    let begun = SpliceHalf {
        instream,
        outstream,
        ack: zero,
        rcv_wnd_edge: zero,
        ..SpliceHalf::default()
    };
    assert_eq!(flow.splice, begun);
    let verify = flow.verify;
    assert_eq!(
        (
            verify.end,
            verify.compared,
            verify.tolerated,
            verify.unverified
        ),
        (end, 0, 0, 0)
    );
    assert_eq!(verify.head_left, 5);
}

#[test]
fn what_is_not_known_cannot_be_changed() {
    // No connection has these ends, or another connection has them by now.
    for (mut lab, id) in [(Lab::new(), 1), (Lab::new().open(), 2)] {
        let (key, id, zero) = (lab.key, FlowId(id), SeqNumber(0));
        let (before, error) = (lab.south.flow(&key).cloned(), NoSuchFlow(key));
        let reason = UnprotectedReason::TotalLimit;
        assert_eq!(lab.south.splice(key, id, zero, zero, zero, 0), Err(error));
        assert_eq!(lab.south.abandon(key, id, 1), Err(error));
        assert_eq!(lab.south.unprotect(key, id, reason), Err(error));
        assert_eq!(lab.south.flow(&key), before.as_ref());
        assert_eq!(
            error.to_string(),
            "no connection 10.0.0.1:40000 -> 10.0.0.10:80 is known"
        );
    }
}

#[test]
fn an_abandoned_flow_is_forgotten_and_closed_in_the_record() {
    let mut lab = Lab::new().open();
    lab.mirrored();
    lab.south.abandon(lab.key, FlowId(1), 1).unwrap();
    assert_eq!(lab.south.flow(&lab.key), None);
    let reason = CloseReason::Evicted;
    assert_eq!(lab.mirrored()[0].kind, FrameKind::Closed(reason));
}

#[test]
fn an_unprotected_flow_is_not_recorded_any_more() {
    let mut lab = Lab::new().open();
    lab.south
        .unprotect(lab.key, FlowId(1), UnprotectedReason::TotalLimit)
        .unwrap();
    lab.mirrored();
    lab.client(segment(lab.c + 1, lab.s + 1).payload(b"x"));
    lab.server(segment(lab.s + 1, lab.c + 2).payload(b"y"));
    assert_eq!((lab.mirrored(), lab.events()), (vec![], vec![]));
}

#[test]
fn a_barrier_needs_room() {
    let mut lab = Lab::with(
        crate::Settings {
            mirror_capacity: protocol::mirror::HEADER_LEN + 16,
            ..settings()
        },
        1,
        2,
        false,
    );
    assert_eq!(lab.south.barrier(77, 5), Ok(()));
    assert_eq!(lab.south.barrier(78, 5), Err(RingFull));
    let frame = lab.south.take_mirror().unwrap();
    assert_eq!(
        (frame.kind, frame.timestamp_ns),
        (FrameKind::Barrier { token: 77 }, 5)
    );
    assert_eq!((frame.flow_id, frame.packet_len), (FlowId(0), 0));
}

#[test]
fn the_sweep_takes_what_was_closed_long_ago() {
    let mut lab = Lab::new().open();
    assert_eq!(lab.south.sweep(0, u64::MAX), 0, "it lives");
    lab.south.flows.get_mut(&lab.key).unwrap().closed_ns = 100;
    assert_eq!(
        lab.south.sweep(200, 150),
        0,
        "nothing is older than the clock"
    );
    assert_eq!(lab.south.sweep(50, 150), 0);
    assert_eq!(lab.south.sweep(50, 151), 1);
    assert_eq!(lab.south.flow(&lab.key), None);
}

#[test]
fn expectations_come_and_go() {
    let mut lab = Lab::new();
    lab.south
        .expect(FlowId(1), [(3, Expect::default()), (4, Expect::default())]);
    lab.south.forget_expected(FlowId(2), [3]);
    lab.south.forget_expected(FlowId(1), [3, 9]);
    assert_eq!(
        lab.south.expected.keys().collect::<Vec<_>>(),
        [&(FlowId(1), 4)]
    );
}
