//! Dynamic responses with inputs (`X-TRODS`).

use objects::{
    flow::Phase,
    plane::{CopyKind, MARK_FROM_SERVER, MARK_QUEUED, StoreKind, Verdict},
};

use super::lab::*;
use super::turns::asked;
use crate::harness::*;

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nX-TRODS: seed=7\r\nContent-Length: 8\r\n\r\n";

fn alone_with_inputs(store: StoreKind, test: impl FnOnce(Lab) + Send) {
    let settings = dataplane::MemberSettings {
        takes_inputs: true,
        ..member_settings()
    };
    alone_with(&settings, |mut lab| {
        lab.store(store);
        test(lab);
    });
}

/// The first segment of the server's response. Returns its number.
fn respond(lab: &mut Lab, payload: &[u8]) -> (wire::SeqNumber, Verdict) {
    let spec = lab.next_of_server(901).payload(payload);
    let seq = spec.seq;
    (seq, lab.server(spec).verdict)
}

#[test]
fn response_with_inputs_waits_for_its_record() {
    alone_with_inputs(StoreKind::Indexed, |lab| {
        let mut lab = asked(lab);
        let (seq, verdict) = respond(&mut lab, &[HEAD, b"body"].concat());
        assert_eq!(verdict, Verdict::Withheld);
        let rest = segment(seq + length(HEAD) + 4, lab.flow().client.nxt).timestamps(902, 12);
        assert_eq!(lab.server(rest.payload(b"more")).verdict, Verdict::Withheld);
        let kinds: Vec<CopyKind> = lab.copies().iter().map(|copy| copy.kind).collect();
        assert_eq!(kinds, [CopyKind::Deferred; 2]);
        assert_eq!(lab.turns().len(), 2, "request and response, for the record");
        let flow = lab.flow();
        assert_eq!(flow.turn.phase, Phase::Body);
        assert_eq!(
            flow.server.nxt, flow.turn.response_start,
            "no byte has left"
        );
    });
}

/// Also when the server's TCP sends the head once more, or a part of it.
#[test]
fn head_with_inputs_leaves_from_user_space_alone() {
    alone_with_inputs(StoreKind::Indexed, |lab| {
        let mut lab = asked(lab);
        let (seq, _) = respond(&mut lab, HEAD);
        assert!(lab.stored(0));
        let acked = lab.flow().client.nxt;
        let from = |at: u32, payload: &[u8]| {
            segment(seq + at, acked)
                .timestamps(903, 12)
                .payload(payload)
        };
        for at in [0, 20] {
            let part = &HEAD[usize::try_from(at).unwrap()..];
            assert_eq!(lab.server(from(at, part)).verdict, Verdict::Withheld);
        }
        let own = from(0, HEAD).mark(MARK + MARK_FROM_SERVER);
        assert_eq!(lab.server(own).verdict, Verdict::RedirectNeighbour);
        let body = from(length(HEAD), b"bodybody");
        assert_eq!(lab.server(body).verdict, Verdict::Next);
    });
}

#[test]
fn response_with_inputs_is_unguarded_without_a_store() {
    alone_with_inputs(StoreKind::None, |lab| {
        let mut lab = asked(lab);
        let (_, verdict) = respond(&mut lab, HEAD);
        assert_eq!(
            verdict,
            Verdict::Withheld,
            "the client must not see the inputs"
        );
        let flow = lab.flow();
        assert!(!flow.turn.is_guarded);
        assert_eq!(flow.unprotected, None, "the next response may be protected");
        assert!(!flow.awaits_store());
    });
}

#[test]
fn inputs_of_a_client_go_to_user_space() {
    const FORGED: &[u8] = b"GET / HTTP/1.1\r\nx-trods: mine\r\n\r\n";
    alone_with_inputs(StoreKind::Indexed, |lab| {
        let mut lab = lab.open();
        let out = lab.client(lab.next_of_client(12).payload(FORGED));
        assert_eq!(out.verdict, Verdict::Drop);
        assert_eq!(lab.copies()[0].kind, CopyKind::Queued);
        let blank = lab
            .next_of_client(12)
            .payload(FORGED)
            .mark(MARK + MARK_QUEUED);
        assert_eq!(lab.client(blank).verdict, Verdict::Next);
        assert_eq!(lab.flow().turn.phase, Phase::Asked);
    });
}

#[test]
fn field_has_no_meaning_for_other_servers() {
    alone(|lab| {
        let mut lab = lab.open();
        lab.store(StoreKind::Indexed);
        let request = b"GET / HTTP/1.1\r\nX-TRODS: a\r\n\r\n";
        assert_eq!(
            lab.client(lab.next_of_client(12).payload(request)).verdict,
            Verdict::Next
        );
        let (_, verdict) = respond(&mut lab, HEAD);
        assert_eq!(verdict, Verdict::Next);
    });
}
