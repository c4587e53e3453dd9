use proptest::prelude::*;
use protocol::control::ClientFin;
use wire::{ChecksumState, Flags, IpPacket, Segment, SeqNumber};

use super::*;
use crate::testing::record;

fn made(recorded: &Recorded, summary: &RecordSummary, silence: Duration) -> Vec<u8> {
    closed_window_ack(recorded, summary, silence).unwrap()
}

proptest! {
    /// The ACK acknowledges exactly the recorded input, whatever the numbers are.
    #[test]
    fn it_says_that_all_has_arrived_and_that_there_is_no_room(
        isns: (u32, u32),
        kind: (bool, bool),
        far: (u32, u64),
        fin: bool,
        clocks: (u32, u32),
        silence: u64,
    ) {
        let ((c, s), (v6, timestamps)) = (isns, kind);
        let ((sent, acknowledged), (tsval, tsecr)) = (far, clocks);
        let (mut recorded, mut summary) = record(SeqNumber(c), SeqNumber(s), v6, timestamps);
        summary.stable_seq = summary.client_isn + 1 + sent;
        let heard = summary.server_isn + 1;
        summary.client_fin = fin.then_some(ClientFin { seq: summary.stable_seq, heard });
        recorded.acknowledged = acknowledged;
        (recorded.tsval, recorded.tsecr) = (tsval, tsecr);
        recorded.beginning.handshake.tsval = tsecr.wrapping_sub(9);

        let bytes = made(&recorded, &summary, Duration::from_millis(silence));
        let packet = IpPacket::parse(&bytes).unwrap();
        let segment = Segment::of(&packet).unwrap();
        let key = recorded.beginning.key;
        prop_assert_eq!((packet.source(), packet.destination()), (key.server().ip(), key.client().ip()));
        prop_assert_eq!(segment.source_port(), key.server().port());
        prop_assert_eq!(segment.destination_port(), key.client().port());
        let state = ChecksumState::of(packet.source(), packet.destination(), packet.payload());
        prop_assert_eq!(state, ChecksumState::Valid);

        let position = u32::try_from(acknowledged & u64::from(u32::MAX)).unwrap();
        let heard = summary.server_isn + 1 + position;
        let said = summary.outstream_end.unwrap();
        prop_assert_eq!(segment.seq(), heard.max_seq(said));
        prop_assert_eq!(segment.ack(), summary.stable_seq + u32::from(fin));
        prop_assert_eq!((segment.flags(), segment.window()), (Flags::ACK, 0));
        prop_assert!(segment.payload().is_empty());
        prop_assert_eq!(segment.timestamps().is_some(), timestamps);
        if let Some(read) = segment.timestamps() {
            // For a client without a segment since the SYN, the handshake has the timestamps.
            let silent = (tsval, tsecr) == (0, 0);
            prop_assert_eq!(read.echo, if silent { 10 } else { tsval });
            let known = if silent { tsecr.wrapping_sub(9) } else { tsecr };
            prop_assert!(!SeqNumber(read.value).before(SeqNumber(known)), "it is not older");
        }
    }
}

#[test]
fn the_clock_goes_on_while_nothing_is_heard() {
    let (recorded, summary) = record(SeqNumber(1), SeqNumber(2), false, true);
    let tsval = |silence| {
        let bytes = made(&recorded, &summary, silence);
        let packet = IpPacket::parse(&bytes).unwrap();
        let segment = Segment::of(&packet).unwrap();
        segment.timestamps().unwrap().value
    };
    assert_eq!(tsval(Duration::ZERO), 950);
    assert_eq!(tsval(Duration::from_millis(1999)), 950 + 1999);
    assert_eq!(tsval(Duration::MAX), 950 + MOST_TICKS);
}
