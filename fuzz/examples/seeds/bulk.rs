//! Messages between the sender and a receiver of bulk data.

use std::num::NonZeroU16;

use protocol::{
    blast::{DATAGRAM_VERSION, PacketHeader},
    bulk::{
        Acceptance, BlastHash, BlastRange, Carrier, ContentHash, Entry, EntryKind, Offer, Reason,
        ReceiverMessage, RelativePath, SecretKey, SenderMessage, Sizes,
    },
    control::{Agreed, Message, Opening, Role, encode},
};

fn bytes_of<M: Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    encode(message, Agreed::own(M::FROM), &mut out).expect("a message");
    out
}

fn entry(kind: EntryKind) -> SenderMessage {
    SenderMessage::Entry(Entry {
        name: RelativePath::new(b"tree/a").expect("a path"),
        permissions: 0o640,
        modified_ns: 1_700_000_000_000_000_000,
        kind,
    })
}

pub(crate) fn bulk_messages() -> Vec<Vec<u8>> {
    let sizes = Sizes {
        packet_bytes: 1412,
        packets: 185,
    };
    let holes = vec![BlastRange { first: 3, end: 300 }];
    let offer = |size, carrier| {
        SenderMessage::Offer(Offer {
            name: RelativePath::new(b"images/disk").expect("a path"),
            size,
            permissions: 0o640,
            modified_ns: 1_700_000_000_000_000_000,
            carrier,
            compares: true,
        })
    };
    let datagrams = Carrier::Datagrams {
        transfer: 300,
        port: NonZeroU16::MAX,
        key: SecretKey([7; 16]),
        sizes,
        holes: holes.clone(),
    };
    let connections = Carrier::Connections {
        key: SecretKey([6; 16]),
        sizes,
        holes: holes.clone(),
    };
    let stream = Carrier::Stream {
        sizes,
        holes: Vec::new(),
    };
    let sender = [
        offer(Some(1 << 40), datagrams),
        offer(None, stream),
        offer(Some(1 << 40), connections),
        SenderMessage::Join {
            key: SecretKey([6; 16]),
        },
        SenderMessage::Keep { ranges: holes },
        SenderMessage::Piece {
            position: 300,
            bytes: vec![1, 2, 3],
        },
        SenderMessage::Finish {
            size: 300,
            hash: ContentHash([9; 32]),
        },
        SenderMessage::Withdraw,
        entry(EntryKind::File { bytes: vec![1, 2] }),
        entry(EntryKind::Directory),
        entry(EntryKind::DirectoryEnd),
        entry(EntryKind::Link {
            target: b"../a".to_vec(),
        }),
    ];
    let receiver = [
        ReceiverMessage::Have {
            first: 300,
            hashes: vec![BlastHash([5; 32])],
        },
        ReceiverMessage::Accept(Acceptance {
            port: NonZeroU16::new(7601),
            prepares: true,
            key: SecretKey([8; 16]),
            ahead: 64,
        }),
        ReceiverMessage::Rejected {
            reason: Reason::NoSpace,
            detail: "3 bytes are free".to_owned(),
        },
        ReceiverMessage::Stored,
        ReceiverMessage::Prepares,
        ReceiverMessage::Ready,
        ReceiverMessage::Withdrawn,
        ReceiverMessage::Joined,
        ReceiverMessage::Arrived {
            position: 300_000,
            packets: 300,
            predicted: 299,
        },
    ];
    let openings = [Role::Sender, Role::Receiver].map(|role| Opening::of(role).encode().to_vec());
    let sender = sender.iter().map(bytes_of);
    sender
        .chain(receiver.iter().map(bytes_of))
        .chain(openings)
        .collect()
}

/// Data connections: the sizes of a transfer, and packets without protection.
pub(crate) fn connections() -> Vec<Vec<u8>> {
    let packet = |blast, packet, count, len: usize| {
        let header = PacketHeader {
            transfer: 0,
            blast,
            packet,
            count,
            round: 0,
            asks: false,
            sent_us: 0,
        };
        [&header.encode(DATAGRAM_VERSION)[..], &vec![7; len + 16]].concat()
    };
    // Packets of 10 bytes, two in a blast, 45 bytes; in the second, the first blast is there.
    let whole = [
        packet(0, 0, 2, 10),
        packet(0, 1, 2, 10),
        packet(2, 0, 1, 5),
        packet(1, 0, 2, 10),
        packet(1, 1, 2, 10),
    ];
    let settings = [9, 1, 45, 0];
    vec![
        [&settings[..], &[0], &whole.concat()].concat(),
        [&settings[..], &[0x10], &whole[2..].concat()].concat(),
    ]
}
