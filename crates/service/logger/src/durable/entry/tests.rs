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
        asked: [seq; 2],
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
            Entry::read(wal::VERSION, &written(3, &entry)),
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
            Entry::read(wal::VERSION, &longer).is_some(),
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
        Entry::read(wal::VERSION, &bytes).is_some()
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
        Entry::read(wal::VERSION, &written(3, &entry)),
        Some((3, entry.clone()))
    );
    assert_eq!(Entry::read(wal::VERSION, &written(4, &entry)), None);
    let mut bytes = vec![1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    bytes.extend([5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([3, b'k', b'e', b'y', 3, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([3, 0, 0, 0, 4, 0, 0, b'w', b'e', b'b']);
    assert_eq!(written(3, &entry), bytes, "the layout of the log changes");
}

/// A connection, and the bytes of its opening in version 6.
fn opened() -> (Entry<'static>, Vec<u8>) {
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
    (Entry::Opened(resume), bytes)
}

/// The control stream may change; the layout of files stays.
#[test]
fn layout_of_a_connection_is_pinned() {
    let (entry, bytes) = opened();
    assert_eq!(Entry::read(6, &bytes), Some((3, entry.clone())));
    let added: &[u8] = match wal::VERSION {
        6 => &[],
        7 => &[0xfd, 0xff, 0xff, 0xff],
        other => panic!("version {other} has no bytes here"),
    };
    let bytes = [&bytes, added].concat();
    assert_eq!(written(3, &entry), bytes, "the layout of the log changes");
    assert_eq!(Entry::read(wal::VERSION, &bytes), Some((3, entry)));
}

/// The entry has no version: the version is in the header of the log file.
#[cfg(feature = "next-version")]
#[test]
fn beginning_of_another_version_is_refused() {
    let (entry, before) = opened();
    assert_eq!(Entry::read(wal::VERSION, &before), None);
    assert_eq!(Entry::read(wal::OLDEST, &written(3, &entry)), None);
}
