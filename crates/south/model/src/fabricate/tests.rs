use super::*;
use crate::testing::{CLIENT_SCALE, Lab, SYN_ACK, segment, syn_options, timestamps};
use wire::{ChecksumState, FlowId, IpPacket, Segment};

fn check(bytes: &[u8], mode: ChecksumState, key: FlowKey, from_client: bool) -> Segment<'_> {
    let packet = IpPacket::parse(bytes).unwrap();
    let ends = (packet.source(), packet.destination());
    let (client, server) = (key.client().ip(), key.server().ip());
    assert_eq!(
        ends,
        if from_client {
            (client, server)
        } else {
            (server, client)
        }
    );
    assert_eq!(ChecksumState::of(ends.0, ends.1, packet.payload()), mode);
    Segment::of(&packet).unwrap()
}

fn splicing() -> Lab {
    let mut lab = Lab::new().open();
    lab.server(
        segment(lab.s + 1, lab.c + 1)
            .timestamps(950, 11)
            .payload(b"banner"),
    );
    lab.client(
        segment(lab.c + 1, lab.s + 4)
            .timestamps(33, 950)
            .window(321),
    );
    lab.crash();
    lab.south.new_incarnation();
    lab.south
        .splice(lab.key, FlowId(1), lab.c + 7, lab.s + 1, lab.s + 1, lab.now)
        .unwrap();
    lab
}

#[test]
fn the_fabricated_syn_is_the_clients_own_with_its_newest_timestamp() {
    let mut lab = splicing();
    // A nonce bit that a client set among the flags is not repeated; ECN is.
    let flow = lab.south.flows.get_mut(&lab.key).unwrap();
    flow.syn_flags = (Flags::SYN | Flags::ECE | Flags::CWR | Flags::PSH).bits();
    let bytes = fabricated_syn(lab.key, lab.flow()).unwrap();
    let syn = check(&bytes, ChecksumState::Partial, lab.key, true);
    assert_eq!(
        (syn.seq(), syn.ack(), syn.window()),
        (lab.c + 7, SeqNumber(0), 64_000)
    );
    assert_eq!(syn.flags(), Flags::SYN | Flags::ECE | Flags::CWR);
    assert_eq!(syn.option_bytes(), syn_options(33, 0, CLIENT_SCALE));
}

#[test]
fn a_replayed_segment_speaks_as_the_client_would() {
    let lab = splicing();
    for (fin, flags) in [
        (false, Flags::ACK | Flags::PSH),
        (true, Flags::ACK | Flags::PSH | Flags::FIN),
    ] {
        let bytes = replayed_segment(lab.key, lab.flow(), lab.c + 8, b"request", fin).unwrap();
        let data = check(&bytes, ChecksumState::Partial, lab.key, true);
        assert_eq!(
            (data.seq(), data.ack(), data.window()),
            (lab.c + 8, lab.s + 4, 321)
        );
        assert_eq!((data.flags(), data.payload()), (flags, &b"request"[..]));
        assert_eq!(data.option_bytes(), timestamps(33, 950));
    }
}

#[test]
fn without_timestamps_agreed_there_are_none() {
    let mut lab = splicing();
    lab.south.flows.get_mut(&lab.key).unwrap().server.timestamps = false;
    let bytes = replayed_segment(lab.key, lab.flow(), lab.c + 8, b"request", false).unwrap();
    assert_eq!(
        check(&bytes, ChecksumState::Partial, lab.key, true).option_bytes(),
        [0u8; 0]
    );
}

#[test]
fn a_payload_that_fits_no_packet_is_an_error() {
    let lab = splicing();
    assert!(replayed_segment(lab.key, lab.flow(), lab.c + 8, &[0; 65_536], false).is_err());
}

#[test]
fn a_window_update_acknowledges_what_the_client_has() {
    let mut lab = splicing();
    lab.server(segment(SeqNumber(70), lab.c + 8).flags(SYN_ACK));
    let bytes = window_update(lab.key, lab.flow()).unwrap();
    let update = check(&bytes, ChecksumState::Partial, lab.key, true);
    assert_eq!(
        (update.seq(), update.ack(), update.window()),
        (lab.c + 8, lab.s + 4, 321)
    );
    assert_eq!((update.flags(), update.payload_len()), (Flags::ACK, 0));
}

#[test]
fn who_waited_for_the_logger_is_told_what_the_server_has() {
    let lab = splicing();
    let mut flow = lab.flow().clone();
    flow.log.ack = flow.server.ack + 100;
    assert_eq!(released_ack(lab.key, &flow), Ok(None), "there is no link");
    flow.log.ifindex = 3;
    flow.log.ack = flow.server.ack;
    assert_eq!(released_ack(lab.key, &flow), Ok(None));
    flow.log.ack = flow.server.ack + 100;
    flow.log.rcv_wnd_edge = flow.log.ack + 1000;
    flow.log.tsecr = 77;
    flow.server.window_scale = 2;
    let bytes = released_ack(lab.key, &flow).unwrap().unwrap();
    let ack = check(&bytes, ChecksumState::Valid, lab.key, false);
    assert_eq!(
        (ack.seq(), ack.ack(), ack.window(), ack.flags()),
        (lab.s + 7, flow.server.ack + 100, 250, Flags::ACK)
    );
    assert_eq!(ack.option_bytes(), timestamps(950, 77));
    // A window that has no room for its number is as large as can be told.
    flow.log.rcv_wnd_edge = flow.log.ack + (1 << 20);
    let bytes = released_ack(lab.key, &flow).unwrap().unwrap();
    let ack = check(&bytes, ChecksumState::Valid, lab.key, false);
    assert_eq!(ack.window(), u16::MAX);
}

#[test]
fn resets_stand_at_both_numbers_that_the_client_may_expect() {
    let lab = splicing();
    let resets = resets_to_client(lab.key, lab.flow()).unwrap();
    let numbers: Vec<_> = resets
        .iter()
        .map(|bytes| check(bytes, ChecksumState::Valid, lab.key, false))
        .map(|reset| (reset.seq(), reset.ack(), reset.flags()))
        .collect();
    let flags = Flags::RST | Flags::ACK;
    assert_eq!(
        numbers,
        [(lab.s + 4, lab.c + 1, flags), (lab.s + 7, lab.c + 1, flags)]
    );
    let quiet = Lab::new().open();
    assert_eq!(resets_to_client(quiet.key, quiet.flow()).unwrap().len(), 1);
}

#[test]
fn keepalive_probe_is_below_window_and_has_no_new_byte() {
    let (key, mut flow) = (Lab::new().key, Flow::default());
    flow.client.ack = SeqNumber(0); // the sequence space has no beginning
    flow.client.tsval = 7;
    flow.server.ack = SeqNumber(100);
    flow.server.tsval = 9;
    for timestamps in [false, true] {
        flow.server.timestamps = timestamps;
        let bytes = keepalive_probe(key, &flow).unwrap();
        let packet = IpPacket::parse(&bytes).unwrap();
        let segment = Segment::of(&packet).unwrap();
        assert_eq!(
            (segment.seq(), segment.ack()),
            (SeqNumber(u32::MAX), SeqNumber(100))
        );
        assert_eq!((segment.flags(), segment.window()), (Flags::ACK, 0));
        assert_eq!(
            segment.payload().len(),
            1,
            "which ends where the window begins"
        );
        assert_eq!(segment.option_bytes().is_empty(), !timestamps);
        assert_eq!(
            (packet.source(), packet.destination()),
            (key.server().ip(), key.client().ip())
        );
    }
}
