//! Properties for all byte strings. The property tests of this crate and the fuzz targets run the same functions; each
//! function panics if the property does not hold.

use std::{
    io::{self, IoSlice},
    sync::{Mutex, atomic::AtomicBool},
};

use blast::{BlastRanges, Layout, connections::Arrivals};

use crate::carrier::{PacketKey, Placement, Sink, receive_from};

/// Bytes in front of a stream: packet length, packets of a blast, size, blasts that are there.
const SETTINGS_LEN: usize = 5;

/// Any bytes from a sender that has the key of a transfer, on a data connection: payloads go to places in the transfer
/// that are not there yet, and to each place once. The first bytes are the sizes of the transfer.
///
/// # Panics
///
/// If the property does not hold.
pub fn connection_bytes(bytes: &[u8]) {
    let Some((settings, mut stream)) = bytes.split_first_chunk::<SETTINGS_LEN>() else {
        return;
    };
    let [packet_bytes, packets, low, high, present] = *settings;
    let layout = Layout::new(u32::from(packet_bytes % 64) + 1, u32::from(packets % 8) + 1);
    let layout = layout.expect("small sizes are sizes");
    let size = u64::from(u16::from_le_bytes([low, high]) % 4096);
    let mut there = BlastRanges::new();
    there.insert(u32::from(present % 16), u32::from(present / 16));
    let arrivals = Arrivals::new(layout, size, there.clone()).expect("few blasts");
    let arrivals = Mutex::new(arrivals);
    let mut sink = OnceSink {
        layout,
        there,
        is_written: vec![false; usize::try_from(size).unwrap_or(0)],
    };
    let never = AtomicBool::new(false);
    let transfer = (&PacketKey::None, &arrivals);
    let received = receive_from(&mut stream, transfer, &mut sink, Placement::Copied, &never);
    let arrivals = arrivals.into_inner().expect("no panic");
    assert!(arrivals.position() <= size);
    if received.is_ok() {
        assert!(stream.is_empty(), "bytes behind the end");
    }
    if arrivals.is_whole() {
        assert_eq!(arrivals.position(), size);
    }
}

/// Refuses a second write, and a write into a blast that was there.
struct OnceSink {
    layout: Layout,
    there: BlastRanges,
    is_written: Vec<bool>,
}

impl Sink for OnceSink {
    fn write(&mut self, position: u64, payloads: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut at = usize::try_from(position).expect("within the size");
        for payload in payloads {
            for place in &mut self.is_written[at..at + payload.len()] {
                assert!(!std::mem::replace(place, true), "a second write");
                let blast = at as u64 / self.layout.blast_bytes();
                assert!(!self.there.contains(u32::try_from(blast).expect("a blast")));
                at += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::blast::{DATAGRAM_VERSION, PacketHeader};

    use super::*;

    proptest! {
        #[test]
        fn any_packets_of_a_connection_are_taken_once(
            settings: [u8; SETTINGS_LEN],
            packets in prop::collection::vec((0..6_u32, 0..9_u16, 0..9_u16, 0..70_usize), 0..12),
            is_cut: bool,
        ) {
            let mut stream = settings.to_vec();
            for (blast, packet, count, len) in packets {
                let header = PacketHeader {
                    transfer: 0,
                    blast,
                    packet,
                    count,
                    round: 0,
                    asks: false,
                    sent_us: 0,
                };
                stream.extend(header.encode(DATAGRAM_VERSION));
                stream.extend(vec![7; len + 16]);
            }
            if is_cut {
                stream.pop();
            }
            connection_bytes(&stream);
        }
    }

    /// The seeds of the fuzz target.
    #[test]
    fn seeds_hold() {
        let seeds = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../fuzz/seeds/connection"
        );
        for seed in std::fs::read_dir(seeds).expect("the seeds") {
            connection_bytes(&std::fs::read(seed.expect("a seed").path()).expect("a file"));
        }
    }
}
