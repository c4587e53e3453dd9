use protocol::{
    DigestSeed,
    control::{Attach, ReplayMode},
    link::{Handshake, SynOptions},
};
use wire::FlowKey;

use super::*;

fn written(instance: u64, entry: &Entry<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    entry.write(instance, &mut bytes);
    bytes
}

fn entries() -> Vec<Entry<'static>> {
    let flow = FlowId(9);
    let seq = SeqNumber(77);
    let change = |fin, server| Change::Instream {
        seq,
        client_ack: seq + 1,
        heard_all: true,
        heads_known: false,
        doubted: None,
        server,
        fin,
        bytes: b"GET /",
    };
    let server = ServerProgress { nxt: seq, ack: seq };
    let mut progress = Progress::from(5);
    let early = Change::Progress(progress);
    progress.time(Timestamps { value: 1, echo: 2 });
    let ends = |fin| Entry::CopyEnds {
        flow,
        fin,
        turn: Position {
            instream: seq,
            outstream: seq,
        },
        answers: [seq; 4],
        asked: Some([seq; 2]),
    };
    vec![
        Entry::Inherited { from: 4 },
        Entry::TurnsHeld(true),
        Entry::Forgotten,
        Entry::DigestSeed(DigestSeed([1, 2])),
        Entry::Changed(flow, change(true, None)),
        Entry::Copied(flow, change(false, Some(server))),
        Entry::Changed(flow, early),
        Entry::Changed(flow, Change::Progress(progress)),
        Entry::Changed(flow, Change::Released(seq)),
        Entry::Changed(
            flow,
            Change::Digest(Digest::from_bytes([7; Digest::LEN]), None),
        ),
        Entry::Changed(flow, Change::Unprotected),
        Entry::Copied(flow, Change::Closed),
        Entry::Changed(
            flow,
            Change::Outstream(OutstreamSegment::in_order(seq, b"HTTP")),
        ),
        ends(None),
        ends(Some(ClientFin { seq, heard: seq })),
        Entry::CopyBeginnings(
            flow,
            vec![
                Position {
                    instream: seq,
                    outstream: seq + 1,
                };
                2
            ],
        ),
    ]
}

#[test]
fn what_is_written_is_read() {
    for entry in entries() {
        assert_eq!(
            Entry::read(Layout::Own, &written(3, &entry)),
            Some((3, entry))
        );
    }
}

#[test]
fn nothing_is_behind_an_entry() {
    for entry in entries() {
        let takes_all = matches!(
            entry,
            Entry::Changed(_, Change::Instream { .. } | Change::Outstream(_))
                | Entry::Copied(_, Change::Instream { .. })
        );
        let longer = [written(3, &entry), vec![0]].concat();
        assert_eq!(
            Entry::read(Layout::Own, &longer).is_some(),
            takes_all,
            "{entry:?}"
        );
    }
}

/// Where the body begins.
const BODY: usize = 17;

#[test]
fn no_entry_has_two_encodings() {
    let changed = |entry: &Entry<'_>, at: usize, to: u8| {
        let mut bytes = written(3, entry);
        assert_ne!(bytes[at], to);
        bytes[at] = to;
        Entry::read(Layout::Own, &bytes).is_some()
    };
    let all = entries();
    assert!(!changed(&all[1], BODY, 2), "a truth value");
    assert!(!changed(&all[2], 9, 1), "a connection of a session");
    assert!(!changed(&all[4], BODY + 8, 1), "no server's number");
    assert!(!changed(&all[4], BODY + 16, 0x25), "an unknown flag");
    assert!(!changed(&all[6], BODY + 8, 2), "a truth value");
    assert!(!changed(&all[13], BODY, 2), "a truth value");
    assert!(!changed(&all[13], BODY + 1, 1), "no FIN's number");
}

#[test]
fn an_attachment_is_that_of_its_instance() {
    let attachment = Attachment {
        attach: Attach {
            instance: 3,
            replay: ReplayMode::Request,
            per_connection: 1,
            total: 2,
            connections: 3,
            udp_port: 4,
            inherit: false,
            service: "web".to_owned(),
            ..Attach::PLAIN
        },
        from: IpAddr::from([10, 0, 0, 1]),
        key: "key".to_owned(),
        number: 5,
        session: 6,
    };
    let entry = Entry::Attached(attachment);
    assert_eq!(
        Entry::read(Layout::Own, &written(3, &entry)),
        Some((3, entry.clone()))
    );
    assert_eq!(Entry::read(Layout::Own, &written(4, &entry)), None);
    let mut bytes = vec![1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    bytes.extend([5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([3, b'k', b'e', b'y', 3, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([3, 0, 0, 0, 4, 0, 0, b'w', b'e', b'b']);
    assert_eq!(written(3, &entry), bytes, "the layout of the log changes");
}

/// The control stream may change; files keep their layout.
#[test]
fn layout_of_a_connection_is_pinned() {
    let handshake = Handshake {
        tsval: 6,
        syn_window: 7,
        syn_options: SynOptions::new(&[1]).expect("short"),
        window_scale: 8,
        sack: true,
        ..Handshake::PLAIN
    };
    let resume = Resume {
        flow: FlowId(1),
        key: FlowKey::new(
            "10.0.0.1:40000".parse().expect("an address"),
            "[fd00::1]:80".parse().expect("an address"),
        ),
        client_isn: SeqNumber(2),
        server_isn: SeqNumber(3),
        instream: SeqNumber(4),
        outstream: SeqNumber(5),
        handshake,
    };
    let mut bytes = vec![4, 3, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend([0x9c, 0x40, 0, 80, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    bytes.extend([5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 2, 1, 8, 2, 1]);
    bytes.extend([0; 41]);
    assert_eq!(written(3, &Entry::Opened(resume)), bytes);
}

/// What version 5 wrote of this instance and connection, in its layout.
fn former(kind: u8, body: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![kind, 3, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(body.concat());
    bytes
}

/// It does not say how far a server had read: that is not known.
#[test]
fn entries_of_version_5_are_read_as_what_they_were() {
    let (flow, seq) = (FlowId(9), SeqNumber(77));
    let (at, after, more) = (
        &77u32.to_le_bytes(),
        &70u32.to_le_bytes(),
        &5u32.to_le_bytes(),
    );
    let said = OutstreamSegment::in_order(seq, b"HTTP");
    let behind = OutstreamSegment {
        more: 5,
        after: Some(SeqNumber(70)),
        ..said
    };
    let came = Change::Instream {
        seq,
        client_ack: seq,
        heard_all: true,
        heads_known: true,
        doubted: None,
        server: None,
        fin: false,
        bytes: b"GET /",
    };
    let ends = Entry::CopyEnds {
        flow,
        fin: None,
        turn: Position {
            instream: seq,
            outstream: SeqNumber(70),
        },
        answers: [seq; 4],
        asked: None,
    };
    let of_version_5 = [
        (
            former(17, &[at, b"HTTP"]),
            Entry::Changed(flow, Change::Outstream(said)),
        ),
        (
            former(33, &[at, b"HTTP"]),
            Entry::Copied(flow, Change::Outstream(said)),
        ),
        (
            former(21, &[at, after, more, b"HTTP"]),
            Entry::Changed(flow, Change::Outstream(behind)),
        ),
        (
            former(37, &[at, after, more, b"HTTP"]),
            Entry::Copied(flow, Change::Outstream(behind)),
        ),
        (
            former(16, &[at, at, &[0; 8], &[HEARD_ALL | HEADS_KNOWN], b"GET /"]),
            Entry::Changed(flow, came),
        ),
        (former(6, &[&[0; 9], at, after, at, at, at, at]), ends),
    ];
    for (bytes, entry) in of_version_5 {
        assert_eq!(Entry::read(Layout::Former, &bytes), Some((3, entry)));
    }
}

/// What is the same in both versions is read as both, and nothing else of this version as of version 5.
#[test]
fn entries_of_this_version_are_not_taken_for_those_of_version_5() {
    for entry in entries() {
        let bytes = written(3, &entry);
        let read = Entry::read(Layout::Former, &bytes);
        let is_the_same = !matches!(
            entry,
            Entry::CopyEnds { .. }
                | Entry::DigestSeed(_)
                | Entry::Changed(_, Change::Digest(..) | Change::Outstream(_))
        );
        assert_eq!(read == Some((3, entry)), is_the_same, "{read:?}");
    }
    let doubted = former(16, &[&[0; 16], &[DOUBTED], &[0; 4]]);
    assert!(Entry::read(Layout::Own, &doubted).is_some());
    assert_eq!(Entry::read(Layout::Former, &doubted), None);
    let after = former(21, &[&[0; 12], b"HTTP"]);
    assert_eq!(Entry::read(Layout::Own, &after), None);
}
