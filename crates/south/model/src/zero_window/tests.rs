use wire::{ChecksumMode, SeqNumber};

use super::*;
use crate::{MARK_CLIENT_SPACE, Packet, Verdict, replayed_segment, testing::*};

const S2: SeqNumber = SeqNumber(500_000);
/// Of segments on Ethernet, with timestamps.
const MSS: u32 = 1448;

/// A connection whose client has `has` bytes of an answer and room for as many as `window` shows. Its server has died,
/// and the new one is about to say the answer again.
fn client_with(has: u32, window: u16) -> Lab {
    let mut lab = Lab::new().open();
    for at in (0..has).step_by(MSS as usize) {
        let payload = vec![1; (has - at).min(MSS) as usize];
        let said = segment(lab.s + 1 + at, lab.c + 1);
        lab.server(said.timestamps(950, 11).payload(&payload));
    }
    let heard = segment(lab.c + 1, lab.s + 1 + has);
    lab.client(heard.timestamps(33, 950).window(window));
    lab.crash();
    lab.splice(S2);
    lab
}

/// The new server says `len` bytes of the answer, from `at` on. The acknowledgement arrives.
fn says(lab: &mut Lab, at: u32, len: u32) -> Out {
    let spec = segment(S2 + 1 + at, lab.c + 1).timestamps(2000, 33);
    let out = lab.server(spec.payload(&vec![1; len as usize]));
    if out.verdict == Verdict::RedirectIngress {
        lab.ingress(out.packet.clone());
    }
    out
}

/// Acknowledgement, counted from the beginning of the answer, and window field of a self-ACK.
fn told(out: &Out) -> (u32, u16) {
    assert_eq!(out.verdict, Verdict::RedirectIngress);
    (
        out.segment().ack().distance_from(S2 + 1).unwrap(),
        out.segment().window(),
    )
}

/// An acknowledgement of the client arrives at the new server.
fn hears(lab: &mut Lab, has: u32, window: u16) -> Out {
    let word = segment(lab.c + 1, lab.s + 1 + has).timestamps(34, 950);
    let out = lab.client(word.window(window));
    assert_eq!(out.verdict, Verdict::Next);
    out
}

fn acked(out: &Out) -> u32 {
    out.segment().ack().distance_from(S2 + 1).unwrap()
}

#[test]
fn replay_is_shown_room_that_the_client_does_not_have() {
    let mut lab = client_with(5000, 0);
    let room = self_ack_window(lab.flow());
    let request = replayed_segment(lab.key, lab.flow(), lab.c + 1, b"request", false).unwrap();
    let injected = Packet {
        bytes: request,
        mark: MARK + MARK_CLIENT_SPACE,
        ifindex: 3,
        checksum: ChecksumMode::Partial,
    };
    let turned = lab.egress(injected);
    assert_eq!(lab.ingress(turned.packet).segment().window(), room);
    assert_eq!(hears(&mut lab, 5000, 0).segment().window(), room);
    // When the server has said all that again, the client's own window is true.
    says(&mut lab, 0, 5000);
    assert_eq!(hears(&mut lab, 5000, 0).segment().window(), 0);
}

#[test]
fn end_of_a_replay_is_held_back_while_the_client_has_no_room() {
    let mut lab = client_with(5000, 0);
    let room = self_ack_window(lab.flow());
    assert_eq!(told(&says(&mut lab, 0, 2 * MSS)), (2 * MSS, room));
    assert_eq!(
        told(&says(&mut lab, 2 * MSS, MSS)),
        (5000 - HELD_BACK, room)
    );
    // A segment of which the client has a part, and no room for the rest.
    assert_eq!(says(&mut lab, 3 * MSS, MSS).verdict, Verdict::Next);
    let word = hears(&mut lab, 5000, 0);
    assert_eq!(
        (acked(&word), word.segment().window()),
        (5000 - HELD_BACK + 1, 0)
    );
    assert!(lab.flow().splice.ack_withheld);
    // The server's timer: the segment goes to the client, and the client answers.
    assert_eq!(says(&mut lab, 2 * MSS, MSS).verdict, Verdict::Next);
    assert_eq!(acked(&hears(&mut lab, 5000, 0)), 5000 - HELD_BACK + 1);
    let word = hears(&mut lab, 5000, 40);
    assert_eq!((acked(&word), word.segment().window()), (5000, 40));
    assert!(!lab.flow().splice.ack_withheld);
}

#[test]
fn word_of_a_client_that_was_held_back_shows_no_round_trip_and_no_blocks() {
    let mut lab = client_with(5000, 0);
    for at in 0..4 {
        says(&mut lab, at * MSS, MSS);
    }
    let block = |lab: &Lab| {
        let mut options = timestamps(34, 950);
        options.extend_from_slice(&[1, 1, 5, 10]);
        for edge in [lab.s + 1 + 2 * MSS, lab.s + 1 + 3 * MSS] {
            options.extend_from_slice(&edge.0.to_be_bytes());
        }
        segment(lab.c + 1, lab.s + 1 + 5000).options(&options)
    };
    let spec = block(&lab).window(0);
    let out = lab.client(spec);
    let mut expected = timestamps(34, 0);
    expected.extend_from_slice(&[1; 12]);
    assert_eq!(out.segment().option_bytes(), expected);
    // The window update, too. The next acknowledgement is translated as any other.
    assert_eq!(
        hears(&mut lab, 5000, 40).segment().option_bytes(),
        timestamps(34, 0)
    );
    let first = lab.flow().splice.first_tsval;
    assert_eq!(
        hears(&mut lab, 5000, 41).segment().option_bytes(),
        timestamps(34, first)
    );
}

#[test]
fn server_that_has_sent_nothing_in_vain_is_told_all_when_it_asks_again() {
    let mut lab = client_with(2 * MSS, 0);
    assert_eq!(told(&says(&mut lab, 0, 2 * MSS)), (2 * MSS - HELD_BACK, 0));
    assert_eq!(told(&says(&mut lab, MSS, MSS)), (2 * MSS, 0));
    assert!(!lab.flow().splice.ack_withheld);
}

#[test]
fn client_with_room_is_told_of_at_once() {
    let mut lab = client_with(5000, 1);
    let room = self_ack_window(lab.flow());
    assert_eq!(told(&says(&mut lab, 0, 5000)), (5000, room));
    says(&mut lab, 5000, MSS);
    assert_eq!(acked(&hears(&mut lab, 5000, 1)), 5000);
}

#[test]
fn last_room_that_a_client_takes_is_held_back_but_for_one_byte() {
    let mut lab = client_with(5000, 1);
    says(&mut lab, 0, 5000);
    says(&mut lab, 5000, MSS);
    for _ in 0..2 {
        assert_eq!(acked(&hears(&mut lab, 5100, 0)), 5001);
        assert!(lab.flow().splice.ack_withheld);
    }
    assert_eq!(acked(&hears(&mut lab, 5100, 40)), 5100);
    assert!(!lab.flow().splice.ack_withheld);
}

#[test]
fn acknowledgement_is_never_taken_back() {
    let mut lab = client_with(5000, 1);
    says(&mut lab, 0, 5000);
    says(&mut lab, 5000, MSS);
    hears(&mut lab, 5000, 1);
    // The client takes the offered window back. The server has read the acknowledgement.
    let word = hears(&mut lab, 5000, 0);
    assert_eq!((acked(&word), word.segment().window()), (5000, 0));
}

/// The server's own check refuses such a number: the segment must not become valid.
#[test]
fn acknowledgement_of_what_no_server_has_sent_stays_invalid() {
    let mut lab = client_with(5000, 0);
    for at in 0..4 {
        says(&mut lab, at * MSS, MSS);
    }
    let una = lab.flow().splice.una;
    let beyond = lab.flow().server.nxt + 1;
    let word = segment(lab.c + 1, beyond).timestamps(34, 950).window(0);
    let out = lab.client(word.payload(b"x"));
    assert_eq!(out.segment().ack(), beyond - lab.flow().splice.delta_seq);
    assert_eq!(lab.flow().splice.una, una);
}

/// A segment of which such a client has a part never reaches the client: the acknowledgement is not held back.
#[test]
fn server_of_a_client_that_takes_whole_segments_is_told_all() {
    let mut lab = client_with(600, 0);
    lab.south.flows.get_mut(&lab.key).unwrap().whole_segments = true;
    assert_eq!(told(&says(&mut lab, 0, MSS)).0, 600);
    assert_eq!(says(&mut lab, 600, MSS).verdict, Verdict::Next);
}
