//! Datagrams of bulk transfers.

use protocol::blast::{Acknowledgement, DATAGRAM_VERSION, PacketHeader, PacketSet};

/// A packet, a probe, and acknowledgements of a blast that is whole and of a blast that is not.
pub(crate) fn blast_datagrams() -> Vec<Vec<u8>> {
    let packet = PacketHeader {
        transfer: 3,
        blast: 7,
        packet: 45,
        count: 46,
        round: 1,
        asks: true,
        sent_us: 1_000_000,
    };
    let probe = PacketHeader {
        packet: 0,
        count: 0,
        ..packet
    };
    let mut missing = PacketSet::empty(46);
    missing.insert(3);
    missing.insert(45);
    let acknowledgement = |missing| {
        let acknowledgement = Acknowledgement {
            transfer: 3,
            number: 9,
            blast: 7,
            round: 1,
            sent_us: 1_000_000,
            whole_below: 7,
            credit: 23,
            congestion: 0,
            duplicates: 1,
            missing,
        };
        let mut bytes = Vec::new();
        acknowledgement.encode(DATAGRAM_VERSION, &mut bytes);
        bytes
    };
    vec![
        packet.encode(DATAGRAM_VERSION).to_vec(),
        probe.encode(DATAGRAM_VERSION).to_vec(),
        acknowledgement(PacketSet::default()),
        acknowledgement(missing),
    ]
}
