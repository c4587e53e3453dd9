//! Input that a dead host may have answered, and a digest of the output that the client has.

use south_model::{Comparison, Digest, Restored};
use wire::SeqNumber;

use super::model::{CLIENT, Model, Peer, SERVER, key, ms};
use crate::{Config, LostReason, Segment};

fn digest(next: SeqNumber) -> Digest {
    Digest {
        next,
        ..Digest::default()
    }
}

/// The client has `heard` bytes, of which 40 are recorded. The dead server had sent 100 bytes when the server had read
/// 20. Of these 20, 10 were recorded then, and `recorded` bytes are recorded by now.
fn doubted(recorded: u32, heard: u32) -> Peer {
    Peer::new(1, recorded, heard).change(|peer| {
        peer.beginnings = vec![(20, 100)];
        peer.digests = vec![digest(SERVER + 100)];
        let record = peer.record.as_mut().expect("a record");
        record.turn_outstream = SERVER;
        record.answers = [SERVER; 2];
        record.outstream_end = Some(SERVER + 40);
        peer.flow.server.ack = CLIENT + 10;
        peer.flow.digest.sent = digest(SERVER + 100);
        peer.flow.digest.comparison = Comparison::Due;
        let log = &mut peer.flow.log;
        (log.restored, log.client_received) = (Restored::Confirmed, SERVER + heard);
        (log.stable, log.doubt) = (CLIENT + recorded, Some(CLIENT + 10));
    })
}

fn model(peer: Peer) -> Model {
    let config = Config {
        verify_head: 40,
        ..Config::default()
    };
    let mut model = Model::with(config, [peer]);
    model.die_and_return();
    model
}

fn piece(from: u32, len: u32) -> Segment {
    Segment {
        from: CLIENT + from,
        len,
        fin: false,
    }
}

/// Input that the dead server had read waits for no output; later input waits for the comparison.
#[test]
fn hashed_output_is_not_in_doubt() {
    let mut model = model(doubted(30, 100));
    model.until_serving(100);
    model.pass_in_steps(ms(200), ms(1));
    assert_eq!(model.pieces(1), [piece(0, 20), piece(20, 10)]);
    assert_eq!(model.reported_losses(), []);
}

/// The server has all recorded input when the client retransmits input that the dead host had not recorded.
#[test]
fn late_hash_releases_input() {
    let mut model = model(doubted(10, 100));
    model.until_serving(100);
    model.pass_in_steps(ms(200), ms(1));
    assert_eq!(model.pieces(1), [piece(0, 10)]);
    let peer = model.peer(1);
    peer.record.as_mut().expect("a record").stable_seq = CLIENT + 30;
    (peer.flow.client.nxt, peer.flow.log.stable) = (CLIENT + 30, CLIENT + 30);
    model.pass_in_steps(ms(400), ms(1));
    let pieces = model.pieces(1);
    assert_eq!(pieces, [piece(0, 10), piece(10, 10), piece(20, 10)]);
    assert_eq!(model.reported_losses(), []);
}

/// The client has a further byte, which may belong to the response to the retransmitted input. The server repeats that
/// byte only after the server got the waiting input.
#[test]
fn unhashed_input_waits_for_output() {
    let mut model = model(doubted(30, 101));
    model.until_serving(100_000);
    let timeout = Config::default().output_repeat_timeout;
    model.pass_in_steps(timeout - ms(10_000), ms(1_000));
    assert_eq!(model.reported_losses(), []);
    model.pass_in_steps(ms(20_000), ms(1_000));
    let lost = LostReason::OutputNotRepeated {
        bytes: 101,
        missing: 20,
    };
    assert_eq!(model.reported_losses(), [(key(1), lost)]);
    let given: u32 = model.pieces(1).iter().map(|piece| piece.len).sum();
    assert_eq!(given, 10);
}
