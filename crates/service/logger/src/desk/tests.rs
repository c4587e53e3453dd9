use journal::{InstreamSegment, Limits, OutstreamSegment, ReplayMode, ServerProgress};
use wire::SeqNumber;

use super::*;

const FLOW: FlowId = FlowId(3);
const CLIENT: SeqNumber = SeqNumber(1_000);
const SERVER: SeqNumber = SeqNumber(9_000);

fn intake() -> Intake {
    let limits = Limits {
        per_connection: 1 << 20,
        total: 1 << 20,
        connections: 1,
    };
    let mut intake = Intake::new(limits, ReplayMode::Request);
    intake.journal.open(FLOW, CLIENT, SERVER).expect("room");
    intake
}

/// The client says `request` after `said` bytes of its own and all of `heard` from the server,
/// which then answers it.
fn exchange(intake: &mut Intake, request: &[u8], said: u32, heard: u32) {
    let (seq, ack) = (CLIENT + 1 + said, SERVER + 1 + heard);
    let arrival = InstreamSegment {
        seq,
        payload: request,
        fin: false,
        client_ack: ack,
        heard_all: true,
        heads_known: false,
        doubted: None,
        server: Some(ServerProgress { nxt: ack, ack: seq }),
    };
    intake.journal.instream(FLOW, &arrival).expect("recorded");
    let answered = intake
        .journal
        .outstream(FLOW, &OutstreamSegment::in_order(ack, b"done"));
    answered.expect("recorded");
}

fn start(desk: Desk, intake: &mut Intake) -> SeqNumber {
    match &desk.answer(intake, &Request::Summaries)[..] {
        [Response::Summaries { summaries, .. }] => summaries[0].start,
        other => panic!("{other:?}"),
    }
}

#[test]
fn while_turns_are_held_the_record_keeps_those_that_are_finished() {
    let (desk, mut intake) = (Desk::new(1), intake());
    exchange(&mut intake, b"one", 0, 0);
    let hold = |hold| Request::HoldTurns { hold };
    assert!(desk.answer(&mut intake, &hold(true)).is_empty());
    exchange(&mut intake, b"two", 3, 4);
    assert_eq!(start(desk, &mut intake), CLIENT + 1);
    assert!(desk.answer(&mut intake, &hold(false)).is_empty());
    exchange(&mut intake, b"three", 6, 8);
    assert_eq!(start(desk, &mut intake), CLIENT + 7);
}
