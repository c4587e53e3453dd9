//! Segments as the server's TCP hands these to a device: longer than a packet of the wire, with an unfinished checksum.

use objects::{
    flow::Mode,
    plane::{Counter, Verdict},
};

use super::{egress::spliced, lab::*};
use crate::harness::*;

const BODY_LEN: u16 = 40_000;
const SEGMENT_SIZE: u16 = 1448;

#[test]
fn super_segment_is_translated() {
    for v6 in [false, true] {
        alone(|lab| {
            let mut lab = lab.numbered(1000, u32::MAX - 100, v6).open();
            lab.client(lab.next_of_client(12).payload(REQUEST_BYTES));
            let payload = [head(BODY_LEN.into()), vec![b'x'; BODY_LEN.into()]].concat();
            let spec = lab.next_of_server(901).payload(&payload);
            assert_eq!(lab.server_offloaded(&spec, SEGMENT_SIZE), Verdict::Next);
            assert!(lab.flow().turn.is_guarded);
            assert_eq!(lab.client(lab.next_of_client(13)).sent.len(), 1);
        });
    }
}

#[test]
fn super_segment_before_the_floor_becomes_a_pure_ack() {
    for v6 in [false, true] {
        alone(|lab| {
            let mut lab = spliced(lab.numbered(1000, 5000, v6));
            let spec = segment(lab.s + 1, lab.c + 1).timestamps(950, 11);
            let spec = spec.payload(&vec![b'x'; BODY_LEN.into()]);
            let verdict = lab.server_offloaded(&spec, SEGMENT_SIZE);
            assert_eq!(verdict, Verdict::RedirectIngress);
            assert_eq!(lab.counted(Counter::SelfAcks), 1);
        });
    }
}

#[test]
fn super_segment_of_a_flow_being_revived_is_copied_up_to_a_limit() {
    alone(|lab| {
        let mut lab = lab.open();
        let mut flow = lab.flow().clone();
        flow.mode = Mode::Reviving;
        lab.write_flow(&flow, true);
        let spec = lab
            .next_of_server(901)
            .payload(&vec![b'x'; BODY_LEN.into()]);
        let verdict = lab.server_offloaded(&spec, SEGMENT_SIZE);
        assert_eq!(verdict, Verdict::Withheld);
        let copies = lab.copies();
        assert_eq!(copies[0].packet.len(), 16_384);
        assert_eq!(copies[0].packet_len, usize::from(BODY_LEN) + 52);
    });
}
