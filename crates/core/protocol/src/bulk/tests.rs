use core::num::NonZeroU16;

use proptest::prelude::*;

use super::*;
use crate::control::{Agreed, ControlError, Decoder, Opening, encode};
use crate::properties;

fn bytes_of<M: Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    encode(message, Agreed::own(M::FROM), &mut out).unwrap();
    out
}

fn pull<M: Message>(bytes: &[u8]) -> Result<Option<M>, ControlError> {
    let mut decoder = Decoder::new(Agreed::own(M::FROM));
    decoder.feed(bytes);
    decoder.pull()
}

fn path(text: &str) -> RelativePath {
    RelativePath::new(text.as_bytes()).unwrap()
}

const SIZES: Sizes = Sizes {
    packet_bytes: 1412,
    packets: 185,
};

fn holes() -> Vec<BlastRange> {
    vec![BlastRange { first: 3, end: 300 }]
}

fn offer(size: Option<u64>, carrier: Carrier) -> SenderMessage {
    SenderMessage::Offer(Offer {
        name: path("images/disk.qcow2"),
        size,
        permissions: 0o640,
        modified_ns: 1_700_000_000_000_000_000,
        carrier,
        compares: true,
        #[cfg(feature = "next-version")]
        next: 0,
    })
}

fn datagrams() -> Carrier {
    Carrier::Datagrams {
        transfer: 300,
        port: NonZeroU16::MAX,
        key: SecretKey([7; 16]),
        sizes: SIZES,
        holes: holes(),
    }
}

fn stream() -> Carrier {
    Carrier::Stream {
        sizes: SIZES,
        holes: Vec::new(),
    }
}

fn connections() -> Carrier {
    Carrier::Connections {
        key: SecretKey([6; 16]),
        sizes: SIZES,
        holes: holes(),
    }
}

fn sender_messages() -> Vec<SenderMessage> {
    vec![
        offer(Some(1 << 40), datagrams()),
        offer(None, stream()),
        offer(Some(1 << 40), connections()),
        SenderMessage::Join {
            key: SecretKey([6; 16]),
        },
        SenderMessage::Keep { ranges: holes() },
        SenderMessage::Piece {
            position: 300,
            bytes: vec![1, 2, 3],
        },
        SenderMessage::Finish {
            size: 300,
            hash: ContentHash([9; 32]),
        },
        SenderMessage::Withdraw,
        entry(EntryKind::File {
            bytes: vec![1, 2, 3],
        }),
        entry(EntryKind::Directory),
        entry(EntryKind::DirectoryEnd),
        entry(EntryKind::Link {
            target: b"../a".to_vec(),
        }),
    ]
}

fn entry(kind: EntryKind) -> SenderMessage {
    SenderMessage::Entry(Entry {
        name: path("tree/a"),
        permissions: 0o640,
        modified_ns: 1_700_000_000_000_000_000,
        kind,
    })
}

const REASONS: [Reason; 10] = [
    Reason::OutOfOrder,
    Reason::Busy,
    Reason::Taken,
    Reason::Place,
    Reason::TooLarge,
    Reason::NoSpace,
    Reason::Storage,
    Reason::Differs,
    Reason::Sizes,
    Reason::Full,
];

fn accept(port: Option<NonZeroU16>) -> ReceiverMessage {
    ReceiverMessage::Accept(Acceptance {
        port,
        prepares: true,
        key: SecretKey([8; 16]),
        ahead: 64,
        #[cfg(feature = "next-version")]
        next: 0,
    })
}

fn receiver_messages() -> Vec<ReceiverMessage> {
    let mut all = vec![
        ReceiverMessage::Have {
            first: 300,
            hashes: vec![BlastHash([5; 32])],
        },
        accept(NonZeroU16::new(7601)),
        accept(None),
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
    all.extend(REASONS.map(|reason| ReceiverMessage::Rejected {
        reason,
        detail: "x".to_owned(),
    }));
    all
}

/// No change of the format is made by accident.
#[cfg(not(feature = "next-version"))]
#[test]
fn encodings_of_this_version_stay_as_they_are() {
    let hex = |bytes: Vec<u8>| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let from_sender = sender_messages().into_iter().map(|it| hex(bytes_of(&it)));
    let from_receiver = receiver_messages().into_iter().map(|it| hex(bytes_of(&it)));
    let lines: Vec<String> = from_sender.chain(from_receiver).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn each_message_is_read_as_it_was_written() {
    for message in sender_messages() {
        assert_eq!(pull(&bytes_of(&message)), Ok(Some(message)));
    }
    for message in receiver_messages() {
        assert_eq!(pull(&bytes_of(&message)), Ok(Some(message)));
    }
}

#[test]
fn target_of_a_link_stays_below_the_directory() {
    let link = path("a/b/link");
    for target in ["x", "x/y", "../x", "../../x", "../..", ".", "x/./y"] {
        assert_eq!(link.check_link(target.as_bytes()), Ok(()), "{target}");
    }
    for target in [
        "",
        "/x",
        "../../../x",
        "x/../y",
        "../x/..",
        "x//y",
        "x/",
        "x\n",
    ] {
        assert!(link.check_link(target.as_bytes()).is_err(), "{target}");
    }
}

#[test]
fn largest_messages_fit() {
    let hashes = vec![BlastHash([255; 32]); HASHES_MAX];
    bytes_of(&ReceiverMessage::Have {
        first: u32::MAX,
        hashes,
    });
    let ranges = vec![
        BlastRange {
            first: u32::MAX,
            end: u32::MAX,
        };
        RANGES_MAX
    ];
    bytes_of(&SenderMessage::Keep {
        ranges: ranges.clone(),
    });
    let carrier = Carrier::Stream {
        sizes: SIZES,
        holes: ranges,
    };
    let mut message = offer(None, carrier);
    if let SenderMessage::Offer(offer) = &mut message {
        let long = ["x".repeat(255).as_str(); 15].join("/");
        offer.name = path(&long);
    }
    bytes_of(&message);
    bytes_of(&SenderMessage::Piece {
        position: u64::MAX,
        bytes: vec![0; PIECE_LEN_MAX],
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_bytes_are_a_stream_or_an_error(bytes: Vec<u8>) {
        properties::bulk_stream(&bytes);
    }

    #[test]
    fn any_damaged_stream_is_a_stream_or_an_error(
        messages in prop::collection::vec(prop::sample::select(sender_messages()), 0..4),
        others in prop::collection::vec(prop::sample::select(receiver_messages()), 0..3),
        size: u8,
        damage: Vec<(prop::sample::Index, u8)>,
        opening: Option<bool>,
    ) {
        let mut stream = vec![size];
        if let Some(is_sender) = opening {
            let role = if is_sender { Role::Sender } else { Role::Receiver };
            stream.extend(Opening::of(role).encode());
        }
        others.iter().for_each(|message| stream.extend(bytes_of(message)));
        messages.iter().for_each(|message| stream.extend(bytes_of(message)));
        properties::bulk_stream(&stream);
        for (at, value) in damage.into_iter().take(2) {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        properties::bulk_stream(&stream);
    }

    /// Joined to a directory, a path leads below the directory, whatever the peer has sent.
    #[test]
    fn any_path_leads_below_its_directory(bytes in "[a./\\\\\n]{0,12}") {
        if let Ok(path) = RelativePath::new(bytes.as_bytes()) {
            let mut depth = 0;
            for component in bytes.split('/') {
                prop_assert!(!matches!(component, "" | "." | ".."));
                prop_assert!(!component.contains('\n'));
                depth += 1;
            }
            prop_assert!(depth > 0);
            let (above, name) = path.split();
            let joined = above.map_or(name.to_vec(), |above| [above, b"/", name].concat());
            prop_assert_eq!(joined, bytes.as_bytes());
        }
    }
}

#[test]
fn path_that_leads_out_is_refused() {
    let cases: [(&str, PathError); 8] = [
        ("", PathError::Length(0)),
        ("/etc/passwd", PathError::EmptyComponent),
        ("a//b", PathError::EmptyComponent),
        ("a/", PathError::EmptyComponent),
        ("..", PathError::Dots),
        ("a/../b", PathError::Dots),
        ("./a", PathError::Dots),
        ("a\nb", PathError::Control),
    ];
    for (text, error) in cases {
        assert_eq!(RelativePath::new(text.as_bytes()), Err(error), "{text:?}");
    }
    let long = "x".repeat(256);
    let refused = RelativePath::new(long.as_bytes());
    assert_eq!(refused, Err(PathError::ComponentLength(256)));
    assert!(path("a/b").join(&path("c")) == Ok(path("a/b/c")));
}

#[test]
fn keys_are_not_in_debug_output() {
    let shown = format!("{:?}", datagrams());
    assert!(
        shown.contains("SecretKey") && !shown.contains("7, 7"),
        "{shown}"
    );
}
