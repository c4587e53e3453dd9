use journal::{InstreamSegment, Limits, OutstreamSegment, ReplayMode, ServerProgress};
use wire::SeqNumber;

use super::*;

const FLOW: FlowId = FlowId(3);
const CLIENT: SeqNumber = SeqNumber(1_000);
const SERVER: SeqNumber = SeqNumber(9_000);

fn ingest() -> Ingest {
    let limits = Limits {
        per_connection: 1 << 20,
        total: 1 << 20,
        connections: 1,
    };
    let mut ingest = Ingest::new(limits, ReplayMode::Request);
    ingest.journal.open(FLOW, CLIENT, SERVER).expect("room");
    ingest
}

/// The client sends `request` after `said` bytes of input and after receiving all `heard` bytes of output; the
/// server responds.
fn exchange(ingest: &mut Ingest, request: &[u8], said: u32, heard: u32) {
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
    ingest.journal.instream(FLOW, &arrival).expect("recorded");
    let answered = ingest
        .journal
        .outstream(FLOW, &OutstreamSegment::in_order(ack, b"done"));
    answered.expect("recorded");
}

fn start(rpc: RpcHandler, ingest: &mut Ingest) -> SeqNumber {
    match &rpc.answer(ingest, &Request::Summaries)[..] {
        [Response::Summaries { summaries, .. }] => summaries[0].start,
        other => panic!("{other:?}"),
    }
}

#[test]
fn while_turns_are_held_the_record_keeps_those_that_are_finished() {
    let (rpc, mut ingest) = (RpcHandler::new(1), ingest());
    exchange(&mut ingest, b"one", 0, 0);
    let hold = |hold| Request::HoldTurns { hold };
    assert!(rpc.answer(&mut ingest, &hold(true)).is_empty());
    exchange(&mut ingest, b"two", 3, 4);
    assert_eq!(start(rpc, &mut ingest), CLIENT + 1);
    assert!(rpc.answer(&mut ingest, &hold(false)).is_empty());
    exchange(&mut ingest, b"three", 6, 8);
    assert_eq!(start(rpc, &mut ingest), CLIENT + 7);
}

#[test]
fn frame_version_is_newest_common_version_or_refused() {
    let (rpc, mut ingest) = (RpcHandler::new(1), ingest());
    let mut hello = |oldest, newest| {
        let frames = Versions::new(oldest, newest).expect("a range");
        let service = "web".to_owned();
        rpc.answer(&mut ingest, &Request::Hello { service, frames })
    };
    let (oldest, newest) = (mirror::VERSIONS.oldest(), mirror::VERSIONS.newest());
    for (offered, chosen) in [
        ((oldest, newest + 1), newest),
        ((oldest - 1, oldest), oldest),
    ] {
        let answer = Response::Hello {
            pid: 1,
            frames: chosen,
        };
        assert_eq!(hello(offered.0, offered.1), [answer]);
    }
    let refused = hello(newest + 1, newest + 2);
    let [Response::Error { code, message }] = &refused[..] else {
        panic!("{refused:?}");
    };
    assert_eq!(*code, ErrorCode::NoCommonVersion);
    assert!(message.contains("of the mirror frame"), "{message}");
}
