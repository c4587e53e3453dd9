//! Determinants of a server's processes: sent repeatedly until the logger has the determinants, and read by the
//! next host.

use std::collections::BTreeMap;

use logger::link::Replication;
use protocol::control::{Edition, KeptImage};
use protocol::link::{DETERMINANTS_OVERHEAD, Determinants, KeySet, Stable, StreamPosition};

use super::*;

const RECORD: u64 = 0x1234;

/// A process of the server, at a separate address.
fn process() -> Peer {
    Peer {
        address: SocketAddr::from(([192, 0, 2, 1], 40_000)),
        ..peer()
    }
}

fn position(offset: usize) -> StreamPosition {
    StreamPosition {
        version: protocol::link::VERSION,
        slot: KeySlot::Zero,
        instance: INSTANCE,
        record: RECORD,
        process: 0,
        offset: offset as u64,
        is_over: false,
    }
}

fn datagram(at: &StreamPosition, bytes: &[u8], key: &LinkKey) -> Vec<u8> {
    let mut datagram = vec![0; DETERMINANTS_OVERHEAD + bytes.len()];
    Determinants::room(&mut datagram).copy_from_slice(bytes);
    Determinants::seal(at, key, &mut datagram);
    datagram
}

fn asks(record: Option<u64>, said: &[(u32, u64)]) -> Request {
    Request::Determinants {
        record,
        said: said.to_vec(),
    }
}

impl Link {
    fn begin_record(&mut self) -> Vec<(u32, u64)> {
        match &self.ask(&asks(Some(RECORD), &[]))[..] {
            [
                Response::Determinants {
                    edition: Some(edition),
                    streams,
                    ..
                },
            ] if edition.record == RECORD => streams.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn tell(&mut self, at: &StreamPosition, bytes: &[u8]) {
        let datagram = datagram(at, bytes, &self.host.keys.up);
        self.sessions.take(process(), &datagram, NOW, &mut self.out);
    }

    /// The end of a batch: the acknowledgements to the processes.
    fn told(&mut self) -> Vec<StreamPosition> {
        self.sessions.settle(NOW, &mut self.out);
        let mut keys = KeySet::EMPTY;
        keys.put(self.host.keys.slot, self.host.keys.down);
        let sent = self.out.datagrams().iter();
        let told = sent.map(|datagram| {
            assert_eq!(datagram.to, process());
            Stable::decode(datagram.bytes(), &keys).expect("a STABLE").0
        });
        let told = told.collect();
        self.out.clear();
        told
    }

    fn kept(&mut self) -> Vec<u8> {
        let request = Request::ReadDeterminants {
            process: 0,
            from: 0,
            max_len: u32::MAX,
        };
        match &self.ask(&request)[..] {
            [Response::DeterminantBytes { bytes }] => bytes.clone(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_has_come_is_told_once_for_each_batch_and_never_more() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    assert_eq!(link.begin_record(), []);
    link.tell(&position(5), b" world");
    assert_eq!(link.told(), [position(0)], "it lacks the beginning");
    link.tell(&position(0), b"hello");
    link.tell(&position(5), b" world");
    assert_eq!(link.told(), [position(11)]);
    link.tell(&position(3), b"lo wor");
    assert_eq!(link.told(), [position(11)]);
    assert_eq!(link.kept(), b"hello world");
    assert_eq!(link.told(), [], "nothing has come");
    assert_eq!(link.begin_record(), [(0, 11)]);
}

#[test]
fn strangers_and_other_records_are_not_heard() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.begin_record();
    let forged = datagram(&position(0), b"forged", &LinkKey([9; 16]));
    link.sessions.take(process(), &forged, NOW, &mut link.out);
    let other = StreamPosition {
        record: RECORD + 1,
        ..position(0)
    };
    link.tell(&other, b"other");
    let nobody = StreamPosition {
        instance: INSTANCE + 1,
        ..position(0)
    };
    link.tell(&nobody, b"nobody");
    assert_eq!(link.told(), []);
    assert_eq!(link.kept(), b"");
    assert_eq!(link.session().statistics().bad_tags, 1);
    assert_eq!(link.sessions.strangers(), 1);
}

#[test]
fn a_record_that_is_over_is_not_there_any_more() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.begin_record();
    link.tell(&position(0), b"hello");
    let over = StreamPosition {
        is_over: true,
        ..position(0)
    };
    link.tell(&over, b"");
    assert_eq!(link.told(), [over]);
    link.tell(&position(5), b" world");
    assert_eq!(link.told(), [over], "nor does it come back");
    let whichever = link.ask(&asks(None, &[]));
    let none = Response::Determinants {
        edition: None,
        is_whole: true,
        image: None,
        streams: Vec::new(),
    };
    assert_eq!(whichever, [none]);
}

#[test]
fn one_that_grows_too_large_is_over() {
    let little = Attach {
        total: 1 << 20,
        ..attach(INSTANCE, 1000)
    };
    let mut link = Link::with(AckPolicy::EachBatch, 1, &little);
    link.begin_record();
    let bytes = [7; 60_000];
    let mut at = 0;
    while at < 1 << 21 {
        link.tell(&position(at), &bytes);
        match link.told()[..] {
            [told] if told.is_over => break,
            [told] => assert_eq!(told, position(at + bytes.len())),
            ref other => panic!("{other:?}"),
        }
        at += bytes.len();
    }
    assert!((800_000..1 << 20).contains(&at), "{at} bytes");
    assert_eq!(link.kept(), b"");
}

#[test]
fn an_heir_finds_them_and_the_dead_host_is_not_heard() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.begin_record();
    link.tell(&position(0), b"hello, wor");
    link.told();
    let later = NOW + Duration::from_secs(5);
    let heir = Attach {
        inherit: true,
        ..attach(INSTANCE + 1, 2000)
    };
    let inherited = link
        .sessions
        .inherit(&heir, peer(), "key", false, later, &mut link.out);
    assert!(inherited.expect("nobody is heard").is_some());
    let (kept, keys) = link
        .sessions
        .attach(&heir, peer(), "key", &greeting(2), &mut link.out);
    assert!(kept);
    let late = datagram(&position(10), b"ld", &link.host.keys.up);
    link.sessions.take(process(), &late, later, &mut link.out);
    let session = link.sessions.get_mut(INSTANCE + 1).expect("attached");
    let mut ask = |request| session.answer(PID, &request, &mut link.out);
    let streams = ask(asks(None, &[]));
    let [
        Response::Determinants {
            edition: Some(edition),
            streams,
            ..
        },
    ] = &streams[..]
    else {
        panic!("{streams:?}");
    };
    assert_eq!((edition.record, &streams[..]), (RECORD, &[(0, 10)][..]));
    let cut = Request::CutDeterminants {
        process: 0,
        length: 7,
    };
    assert_eq!(ask(cut), []);
    // The process continues after the cut.
    let at = StreamPosition {
        version: protocol::link::VERSION,
        slot: keys.slot,
        instance: INSTANCE + 1,
        ..position(7)
    };
    let more = datagram(&at, b"world", &keys.up);
    link.sessions.take(process(), &more, later, &mut link.out);
    let session = link.sessions.get_mut(INSTANCE + 1).expect("attached");
    let request = Request::ReadDeterminants {
        process: 0,
        from: 0,
        max_len: 100,
    };
    let kept = session.answer(PID, &request, &mut link.out);
    let bytes = b"hello, world".to_vec();
    assert_eq!(kept, [Response::DeterminantBytes { bytes }]);
}

/// The state of a replica: the edition, and the stream of each process.
#[derive(Default, Debug, PartialEq)]
struct Heard {
    edition: Option<Edition>,
    streams: BTreeMap<u32, Vec<u8>>,
}

impl Heard {
    fn all(&mut self, follower: &mut Replication, sessions: &Sessions, key: &str) {
        while let Some(news) = follower.next(sessions, key) {
            match news {
                Response::Followed { edition } => {
                    *self = Self {
                        edition,
                        ..Self::default()
                    };
                }
                Response::Grown {
                    process,
                    from,
                    bytes,
                } => {
                    let stream = self.streams.entry(process).or_default();
                    assert_eq!(from, stream.len() as u64, "a hole, or twice");
                    stream.extend(bytes);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn who_follows_has_what_is_there_and_hears_when_that_is_another() {
    let mut link = Link::new(AckPolicy::EachFrame, 1);
    let mut follower = Replication::new("test".into(), None, &[]);
    let mut heard = Heard::default();
    heard.all(&mut follower, &link.sessions, "key");
    assert_eq!(heard, Heard::default());
    link.begin_record();
    let large = vec![7; 200_000];
    link.tell(&position(0), b"hello");
    heard.all(&mut follower, &link.sessions, "key");
    link.tell(&position(5), &large);
    heard.all(&mut follower, &link.sessions, "key");
    let all = [b"hello", &large[..]].concat();
    assert!(heard.streams[&0] == all);
    // A replica that reconnects continues after the bytes of `has`.
    let has = [(0, 100)];
    let mut again = Replication::new("test".into(), heard.edition, &has);
    let Some(Response::Grown { from: 100, .. }) = again.next(&link.sessions, "key") else {
        panic!("it has the beginning");
    };
    // A stream that was cut and continued differently makes a new edition.
    let cut = Request::CutDeterminants {
        process: 0,
        length: 4,
    };
    assert_eq!(link.ask(&cut), []);
    link.tell(&position(4), b"! It is another one, and as long");
    let before = heard.edition;
    heard.all(&mut follower, &link.sessions, "key");
    assert_ne!(heard.edition, before);
    assert_eq!(heard.streams[&0], b"hell! It is another one, and as long");
    // Another key, or another service, gets no determinants.
    let mut stranger = Replication::new("test".into(), heard.edition, &[]);
    let told = stranger.next(&link.sessions, "another key");
    assert_eq!(told, Some(Response::Followed { edition: None }));
    assert_eq!(stranger.next(&link.sessions, "another key"), None);
    let mut of_another = Replication::new("another".into(), heard.edition, &[]);
    let told = of_another.next(&link.sessions, "key");
    assert_eq!(told, Some(Response::Followed { edition: None }));
}

/// After a restart a logger's record is not whole until the record has all bytes that an earlier logger
/// acknowledged, from any sender.
#[test]
fn what_was_said_before_belongs_to_it() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    let is_whole =
        |link: &mut Link, said: &[(u32, u64)]| match &link.ask(&asks(Some(RECORD), said))[..] {
            [Response::Determinants { is_whole, .. }] => *is_whole,
            other => panic!("{other:?}"),
        };
    assert!(is_whole(&mut link, &[]));
    assert!(!is_whole(&mut link, &[(0, 11), (1, 3)]));
    assert!(
        !is_whole(&mut link, &[(0, 5)]),
        "nor when it is asked again"
    );
    link.tell(&position(0), b"hello");
    let tells = |record, process, from, bytes: &[u8]| Request::TellDeterminants {
        record,
        process,
        from,
        bytes: bytes.to_vec(),
    };
    for (record, process, from, bytes) in [
        (RECORD, 1, 0, &b"abc"[..]),
        (RECORD, 0, 7, b"orld"), // a hole
        (RECORD + 1, 0, 5, b" world"),
        (RECORD, 0, 3, b"lo worl"),
    ] {
        assert_eq!(link.ask(&tells(record, process, from, bytes)), []);
        assert!(!is_whole(&mut link, &[]));
    }
    link.tell(&position(10), b"d");
    assert!(is_whole(&mut link, &[]));
    assert_eq!(link.begin_record(), [(0, 11), (1, 3)]);
    // Another record is independent.
    assert_eq!(link.ask(&asks(Some(RECORD + 1), &[])).len(), 1);
    assert!(is_whole(&mut link, &[]));
}

const IMAGE: u64 = 77;

fn of_image(length: usize, from: usize, bytes: &[u8]) -> Request {
    Request::TellImage {
        record: RECORD,
        image: IMAGE,
        length: length as u64,
        from: from as u64,
        bytes: bytes.to_vec(),
    }
}

fn commits(base: u64) -> Request {
    Request::CommitImage {
        record: RECORD,
        image: IMAGE,
        base,
        processes: 4,
    }
}

impl Link {
    /// The image at the start of the record, and the length of the first process's stream.
    fn image(&mut self) -> (Option<KeptImage>, Option<u64>) {
        match &self.ask(&asks(None, &[]))[..] {
            [Response::Determinants { image, streams, .. }] => {
                (*image, streams.first().map(|(_, length)| *length))
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_image_takes_the_place_of_what_is_before_it_when_it_is_there_as_a_whole() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.begin_record();
    link.tell(&position(0), b"hello, world");
    link.told();
    let taken = |there| {
        vec![Response::ImageTaken {
            record: RECORD,
            image: IMAGE,
            there,
        }]
    };
    assert_eq!(link.ask(&of_image(10, 0, b"01234")), taken(5));
    let refused = link.ask(&commits(7));
    assert!(
        matches!(&refused[..], [Response::ImageRefused { image: IMAGE, .. }]),
        "{refused:?}"
    );
    assert_eq!(link.image(), (None, Some(12)));
    assert_eq!(link.ask(&of_image(10, 5, b"56789")), taken(10));
    let kept = Response::ImageKept {
        record: RECORD,
        image: IMAGE,
    };
    assert_eq!(link.ask(&commits(7)), [kept]);
    let image = KeptImage {
        number: IMAGE,
        length: 10,
        base: 7,
        processes: 4,
    };
    assert_eq!(link.image(), (Some(image), Some(12)));
    let reads = |image, from| Request::ReadImage {
        image,
        from,
        max_len: 4,
    };
    for (image, from, bytes) in [(IMAGE, 0, &b"0123"[..]), (IMAGE, 8, b"89"), (1, 0, b"")] {
        let bytes = bytes.to_vec();
        assert_eq!(
            link.ask(&reads(image, from)),
            [Response::ImageBytes { bytes }]
        );
    }
    // Repeated determinants from before the image change nothing.
    link.tell(&position(0), b"0000000000000");
    assert_eq!(link.told(), [position(13)]);
    let behind = Request::ReadDeterminants {
        process: 0,
        from: 7,
        max_len: 100,
    };
    let bytes = b"world0".to_vec();
    assert_eq!(link.ask(&behind), [Response::DeterminantBytes { bytes }]);
}

/// An upload without a commit leaves the record unchanged: after the death or detachment of the uploader, and for
/// an heir.
#[test]
fn an_image_that_was_not_committed_is_gone_with_whoever_told_of_it() {
    for step in ["attach", "detach", "inherit", "drop"] {
        let mut link = Link::new(AckPolicy::EachBatch, 1);
        link.begin_record();
        link.tell(&position(0), b"hello");
        link.ask(&of_image(10, 0, b"0123456789"));
        assert!(link.session().held_by_images() > 0);
        let mut instance = INSTANCE;
        match step {
            "attach" => {
                let again = attach(INSTANCE, 1000);
                link.sessions
                    .attach(&again, peer(), "key", &greeting(2), &mut link.out);
            }
            "detach" => link.sessions.detach(INSTANCE, NOW),
            "inherit" => {
                let heir = Attach {
                    inherit: true,
                    ..attach(INSTANCE + 1, 2000)
                };
                let later = NOW + Duration::from_secs(5);
                let inherited =
                    link.sessions
                        .inherit(&heir, peer(), "key", false, later, &mut link.out);
                assert!(inherited.expect("nobody is heard").is_some());
                instance += 1;
            }
            _ => assert_eq!(link.ask(&Request::DropImage), []),
        }
        let session = link.sessions.get_mut(instance).expect("a session");
        assert_eq!(session.held_by_images(), 0, "{step}");
        let answers = session.answer(PID, &commits(5), &mut link.out);
        assert!(
            matches!(&answers[..], [Response::ImageRefused { .. }]),
            "{step}: {answers:?}"
        );
        let kept = session.answer(PID, &asks(None, &[]), &mut link.out);
        let [
            Response::Determinants {
                image: None,
                streams,
                ..
            },
        ] = &kept[..]
        else {
            panic!("{step}: {kept:?}");
        };
        assert_eq!(streams[..], [(0, 5)], "{step}");
    }
}

/// A record that begins with an image cannot be replicated from the beginning.
#[test]
fn who_follows_is_told_of_no_record_that_begins_with_an_image() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    let mut follower = Replication::new("test".into(), None, &[]);
    let mut heard = Heard::default();
    link.begin_record();
    link.tell(&position(0), b"hello");
    heard.all(&mut follower, &link.sessions, "key");
    assert_eq!(heard.streams[&0], b"hello");
    link.ask(&of_image(1, 0, b"i"));
    link.ask(&commits(3));
    link.tell(&position(5), b" world");
    heard.all(&mut follower, &link.sessions, "key");
    assert_eq!(heard, Heard::default());
}
