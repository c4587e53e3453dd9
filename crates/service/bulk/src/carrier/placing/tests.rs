use std::net::SocketAddr;

use blast::BlastRanges;
use proptest::prelude::*;
use protocol::blast::DATAGRAM_VERSION;

use super::*;
use crate::carrier::PacketKey;

const KEY: PacketKey = PacketKey::Secret([3; 16]);
const PACKET_BYTES: u32 = 100;
const PACKETS_PER_BLAST: u16 = 7;
/// Three blasts and a part of a fourth: the last packet is shorter than the others.
const SIZE_BYTES: usize = 2437;

/// A datagram of a row that leaves at once.
#[derive(Debug, Clone, Copy)]
enum Sent {
    /// A packet of the transfer, by number.
    Packet(u32),
    /// The same, with a byte that was changed on the way.
    Forged(u32),
    /// The same, of another key.
    Foreign(u32),
}

fn layout() -> Layout {
    Layout::new(PACKET_BYTES, PACKETS_PER_BLAST.into()).expect("sizes in range")
}

fn data() -> Vec<u8> {
    (0..SIZE_BYTES)
        .map(|at| u8::try_from((at * 7 + at / 100) % 251).expect("small"))
        .collect()
}

fn id(number: u32) -> PacketId {
    PacketId {
        blast: number / u32::from(PACKETS_PER_BLAST),
        packet: u16::try_from(number % u32::from(PACKETS_PER_BLAST)).expect("small"),
    }
}

fn place(id: PacketId) -> Range<usize> {
    let start = usize::try_from(layout().position(id)).expect("small");
    start..(start + 100).min(SIZE_BYTES)
}

fn datagram(sent: Sent, round: u16) -> Vec<u8> {
    let (number, key) = match sent {
        Sent::Packet(number) | Sent::Forged(number) => (number, KEY),
        Sent::Foreign(number) => (number, PacketKey::Secret([4; 16])),
    };
    let id = id(number);
    let in_blast = layout()
        .blast_bytes()
        .min(u64::try_from(SIZE_BYTES).expect("small") - layout().blast_position(id.blast));
    let header = PacketHeader {
        transfer: 9,
        blast: id.blast,
        packet: id.packet,
        count: layout().packets_of(in_blast),
        round,
        asks: false,
        sent_us: 0,
    };
    let head = header.encode(DATAGRAM_VERSION);
    let mut payload = data()[place(id)].to_vec();
    let mut tag = [0; TAG_LEN];
    Cipher::new(&key).seal(header.nonce(), &head, &mut payload, &mut tag);
    let mut datagram = [head.as_slice(), &payload, &tag].concat();
    if matches!(sent, Sent::Forged(_)) {
        let middle = datagram.len() / 2;
        datagram[middle] ^= 1;
    }
    datagram
}

struct Ends {
    sender: DataSocket,
    receiver: DataSocket,
    to: SocketAddr,
}

impl Ends {
    fn new() -> Self {
        let socket = || DataSocket::bind("127.0.0.1:0".parse().expect("an address"));
        let (sender, receiver) = (socket().expect("a socket"), socket().expect("a socket"));
        let to = receiver.local().expect("an address");
        let from = sender.local().expect("an address");
        receiver.connect(from).expect("a route");
        Self {
            sender,
            receiver,
            to,
        }
    }

    /// Sends datagrams joined, as far as the lengths allow.
    fn send(&self, datagrams: &[Vec<u8>]) {
        let mut row: Vec<u8> = Vec::new();
        let mut len = 0;
        for datagram in datagrams {
            if !row.is_empty() && (datagram.len() > len || !row.len().is_multiple_of(len)) {
                self.send_row(&row, len);
                row.clear();
            }
            if row.is_empty() {
                len = datagram.len();
            }
            row.extend_from_slice(datagram);
        }
        self.send_row(&row, len);
    }

    fn send_row(&self, row: &[u8], len: usize) {
        assert!(self.sender.send(self.to, row, len).expect("space"));
    }
}

/// Each packet that counts has the right bytes.
fn check(core: &Receiver, arrived: &[u32], memory: &[u8]) -> Result<(), TestCaseError> {
    let data = data();
    for number in arrived {
        let place = place(id(*number));
        prop_assert!(memory[place.clone()] == data[place], "packet {}", number);
    }
    let below = layout().blast_position(core.whole_below());
    let below = usize::try_from(below).expect("small").min(SIZE_BYTES);
    prop_assert!(memory[..below] == data[..below]);
    Ok(())
}

fn sent() -> impl Strategy<Value = Sent> {
    let packets = u32::try_from(SIZE_BYTES)
        .expect("small")
        .div_ceil(PACKET_BYTES);
    prop_oneof![
        8 => (0..packets).prop_map(Sent::Packet),
        1 => (0..packets).prop_map(Sent::Forged),
        1 => (0..packets).prop_map(Sent::Foreign),
    ]
}

/// Rows of packets: neighbours in order, and packets from anywhere.
fn row() -> impl Strategy<Value = Vec<Sent>> {
    let neighbours = (0..24_u32, 1..10_u32)
        .prop_map(|(first, count)| (first..(first + count).min(25)).map(Sent::Packet).collect());
    prop_oneof![neighbours, prop::collection::vec(sent(), 1..10)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn packets_in_any_order_reach_their_positions(
        rows in prop::collection::vec(row(), 1..12),
        is_misled in any::<bool>(),
    ) {
        let ends = Ends::new();
        let size = u64::try_from(SIZE_BYTES).expect("small");
        let mut core = Receiver::new(layout(), 9, Some(size), 100, BlastRanges::new())
            .expect("few blasts");
        let mut placing = Placing::new(layout(), is_misled);
        let cipher = Cipher::new(&KEY);
        let (mut memory, mut result) = (vec![0; SIZE_BYTES], Reception::default());
        let (mut arrived, mut forged) = (Vec::new(), 0);
        for (round, row) in rows.iter().enumerate() {
            let round = u16::try_from(round).expect("few");
            let datagrams: Vec<_> = row.iter().map(|it| datagram(*it, round)).collect();
            ends.send(&datagrams);
            for sent in row {
                match sent {
                    Sent::Packet(number) => arrived.push(*number),
                    Sent::Forged(_) | Sent::Foreign(_) => forged += 1,
                }
            }
            while placing
                .read(&ends.receiver, &mut core, &cipher, &mut memory, &mut result)
                .expect("packets of a correct sender")
            {
                placing.relocate(&mut memory);
            }
            check(&core, &arrived, &memory)?;
        }
        arrived.sort_unstable();
        let doubled = arrived.len();
        arrived.dedup();
        prop_assert_eq!(result.placed + result.moved, u64::try_from(arrived.len()).expect("few"));
        prop_assert_eq!(core.duplicates(), u32::try_from(doubled - arrived.len()).expect("few"));
        prop_assert_eq!(result.forged, forged);
    }
}

#[test]
fn packets_in_order_need_no_copy() {
    let ends = Ends::new();
    let size = u64::try_from(SIZE_BYTES).expect("small");
    let core = Receiver::new(layout(), 9, Some(size), 100, BlastRanges::new());
    let (mut core, cipher) = (core.expect("few blasts"), Cipher::new(&KEY));
    let (mut placing, mut memory) = (Placing::new(layout(), false), vec![0; SIZE_BYTES]);
    let mut result = Reception::default();
    let datagrams: Vec<_> = (0..25).map(|it| datagram(Sent::Packet(it), 0)).collect();
    ends.send(&datagrams);
    while placing
        .read(&ends.receiver, &mut core, &cipher, &mut memory, &mut result)
        .expect("packets of a correct sender")
    {
        placing.relocate(&mut memory);
    }
    assert!(memory == data());
    // The last packet is shorter, and is never expected.
    assert_eq!((result.placed, result.moved), (24, 1), "{result:?}");
}
