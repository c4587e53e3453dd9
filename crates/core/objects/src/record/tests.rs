use std::path::Path;
use std::string::{String, ToString as _};
use std::vec;

use proptest::prelude::*;
use wire::FlowKey;

use super::*;
use crate::key::PoolKey;

fn seq() -> impl Strategy<Value = SeqNumber> {
    any::<u32>().prop_map(SeqNumber)
}

fn text() -> impl Strategy<Value = Option<String>> {
    prop::option::of("[ -~]{0,40}")
}

fn answer() -> impl Strategy<Value = StoredAnswer> {
    let len = prop::option::of(any::<u64>());
    let version = (prop::option::of(any::<u64>()), text(), text(), text());
    (
        seq(),
        any::<u32>(),
        len,
        any::<u64>(),
        any::<u64>(),
        version,
    )
        .prop_map(|(start, header_len, len, first_byte, acked, version)| {
            let (complete_len, etag, last_modified, content_encoding) = version;
            let least = u64::from(header_len).max(acked);
            StoredAnswer {
                start,
                header_len,
                response_len: len.map(|len| len.max(least)),
                first_byte,
                acked,
                version: ObjectVersion {
                    complete_len,
                    etag,
                    last_modified,
                    content_encoding,
                },
            }
        })
}

fn stored_pair() -> impl Strategy<Value = StoredTurn> {
    let request = prop::collection::vec(any::<u8>(), 0..300);
    (
        any::<u32>(),
        seq(),
        request,
        any::<bool>(),
        prop::option::of(answer()),
    )
        .prop_map(
            |(number, request_start, request, has_range, answer)| StoredTurn {
                number,
                request_start,
                request,
                has_range,
                answer,
            },
        )
}

fn record() -> impl Strategy<Value = Record> {
    let options = (
        prop::option::of(0_u8..=14),
        any::<u16>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(window_scale, segment_size, has_sack, has_timestamps)| StoredOptions {
                window_scale,
                segment_size,
                has_sack,
                has_timestamps,
            },
        );
    let turns = prop::collection::vec(stored_pair(), 0..=TURNS_MAX);
    (
        any::<u32>(),
        any::<u64>(),
        seq(),
        seq(),
        0_u8..16,
        options,
        turns,
        prop::option::of(prop::collection::vec(any::<u8>(), 0..=INPUTS_LEN_MAX)),
        prop::option::of(prop::collection::vec(any::<u8>(), 0..9)),
    )
        .prop_map(
            |(generation, owner, client_isn, server_isn, slot, options, turns, inputs, body)| {
                Record {
                    generation,
                    owner,
                    client_isn,
                    server_isn,
                    slot: Slot::new(slot),
                    options,
                    turns,
                    inputs,
                    chunks: body.map(|body| Beginning::of(&body)),
                }
            },
        )
}

fn name(pool: &PoolKey, member: &str, port: u16) -> StoreKey {
    let flow = FlowKey::new(([10, 0, 0, 1], port).into(), ([10, 0, 0, 10], 80).into());
    StoreKey::new(
        HashName::new(flow.server(), MemberHash::of(member, pool)),
        flow,
    )
}

const POOL: PoolKey = PoolKey([1; 16]);

/// A download of 1,000 bytes behind a head of 200 bytes.
fn download(start: u32, response_len: Option<u64>, acked: u64) -> StoredAnswer {
    StoredAnswer {
        start: SeqNumber(start),
        header_len: 200,
        response_len,
        first_byte: 0,
        acked,
        version: ObjectVersion {
            complete_len: Some(1000),
            etag: None,
            last_modified: None,
            content_encoding: None,
        },
    }
}

fn with_turns(turns: Vec<StoredTurn>) -> Record {
    Record {
        generation: 1,
        owner: 2,
        client_isn: SeqNumber(3),
        server_isn: SeqNumber(4),
        slot: Slot::new(5),
        options: StoredOptions {
            window_scale: Some(7),
            segment_size: 1460,
            has_sack: true,
            has_timestamps: false,
        },
        turns,
        inputs: None,
        chunks: None,
    }
}

fn stored_with(number: u32, answer: Option<StoredAnswer>) -> StoredTurn {
    StoredTurn {
        number,
        request_start: SeqNumber(100 * number),
        request: b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        has_range: false,
        answer,
    }
}

proptest! {
    #[test]
    fn sealed_record_is_read_as_written(
        record in record(), secret in any::<[u8; 16]>(), nonce in any::<[u8; NONCE_LEN]>(), port in any::<u16>(),
    ) {
        let pool = PoolKey(secret);
        let (key, name) = (RecordKey::of(&pool), name(&pool, "web1", port));
        let sealed = record.seal(&key, &name, nonce).unwrap();
        prop_assert!(sealed.len() <= SEALED_LEN_MAX);
        prop_assert_eq!(Record::open(&sealed, &key, &name), Ok(record));
    }

    #[test]
    fn changed_record_is_refused(record in record(), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
        let (key, name) = (RecordKey::of(&POOL), name(&POOL, "web1", 1));
        let mut sealed = record.seal(&key, &name, [9; NONCE_LEN]).unwrap();
        let at = at.index(sealed.len());
        sealed[at] ^= 1 << bit;
        let refused = Record::open(&sealed, &key, &name);
        // The versions 1, 2 and 3 are known, and the version is sealed, too.
        match (at, sealed[0]) {
            (0, version @ (0 | 4..)) => prop_assert_eq!(refused, Err(RecordError::Version(version))),
            _ => prop_assert_eq!(refused, Err(RecordError::Forged)),
        }
    }

    #[test]
    fn cut_record_is_refused(record in record(), len in any::<prop::sample::Index>()) {
        let (key, name) = (RecordKey::of(&POOL), name(&POOL, "web1", 1));
        let sealed = record.seal(&key, &name, [9; NONCE_LEN]).unwrap();
        let cut = &sealed[..len.index(sealed.len())];
        prop_assert_eq!(Record::open(cut, &key, &name), Err(RecordError::Forged));
    }

    #[test]
    fn any_bytes_have_the_properties(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        properties::record(&bytes);
    }

    #[test]
    fn damaged_contents_have_the_properties(
        record in record(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
    ) {
        let mut plain = postcard::to_allocvec(&record).unwrap();
        let at = at.index(plain.len());
        plain[at] = byte;
        properties::record(&plain);
        properties::record(&plain[..cut.index(plain.len())]);
    }

    #[test]
    fn texts_have_the_properties_of_fields(
        text in "([0-9]{1,3}\\.){3}[0-9]{1,3}:[0-9]{1,5}>(\\[[0-9a-f:]{2,20}\\]|10\\.0\\.0\\.1):[0-9]{1,5}",
    ) {
        properties::field(&text);
    }

    /// Two names never agree in the flat form, and a field tells the connection.
    #[test]
    fn names_are_unique(
        v6 in any::<[bool; 2]>(), ports in any::<[u16; 2]>(), addresses in any::<[u8; 2]>(),
        members in prop::array::uniform2("[a-c]{1,2}"),
    ) {
        let make = |n: usize| {
            let client = match v6[n] {
                true => std::net::SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, addresses[n].into()], ports[n])),
                false => ([10, 0, 0, addresses[n]], ports[n]).into(),
            };
            let flow = FlowKey::new(client, ([10, 0, 0, 10], 80).into());
            StoreKey::new(HashName::new(flow.server(), MemberHash::of(&members[n], &POOL)), flow)
        };
        let (a, b) = (make(0), make(1));
        prop_assert_eq!(a.flat() == b.flat(), a == b);
        prop_assert_eq!(StoreKey::flow_of(&a.field()), Some(a.flow));
    }

    /// The offset counts every byte of a response that is longer than the sequence space.
    #[test]
    fn offset_is_exact_within_two_gigabytes_of_the_record(
        start in any::<u32>(), acked in 0_u64..1 << 40, more in -(1_i64 << 31) + 1..1 << 31,
    ) {
        let answer = download(start, None, acked);
        let offset = acked.checked_add_signed(more);
        let [a, b, c, d, ..] = acked.wrapping_add_signed(more).to_le_bytes();
        let ack = SeqNumber(start) + u32::from_le_bytes([a, b, c, d]);
        prop_assert_eq!(answer.offset(ack), offset);
    }
}

#[test]
fn record_of_other_key_name_or_version_is_refused() {
    let record = with_turns(vec![stored_with(0, Some(download(5, Some(1200), 0)))]);
    let key = RecordKey::of(&POOL);
    let sealed = record
        .seal(&key, &name(&POOL, "web1", 1), [9; NONCE_LEN])
        .unwrap();
    let open = |key: &RecordKey, name: &StoreKey| Record::open(&sealed, key, name);
    assert_eq!(open(&key, &name(&POOL, "web1", 1)), Ok(record));
    assert_eq!(
        open(&key, &name(&POOL, "web1", 2)),
        Err(RecordError::Forged),
        "another connection"
    );
    assert_eq!(
        open(&key, &name(&POOL, "web2", 1)),
        Err(RecordError::Forged),
        "another member"
    );
    let stranger = RecordKey::of(&PoolKey([2; 16]));
    assert_eq!(
        open(&stranger, &name(&POOL, "web1", 1)),
        Err(RecordError::Forged)
    );
    let mut next = sealed.clone();
    next[0] = 4;
    assert_eq!(
        Record::open(&next, &key, &name(&POOL, "web1", 1)),
        Err(RecordError::Version(4))
    );
    next[0] = 2;
    assert_eq!(
        Record::open(&next, &key, &name(&POOL, "web1", 1)),
        Err(RecordError::Forged),
        "the version is authenticated"
    );
    assert_eq!(
        Record::open(&[], &key, &name(&POOL, "web1", 1)),
        Err(RecordError::Forged)
    );
}

#[test]
fn state_beyond_the_limits_is_not_sealed() {
    let key = RecordKey::of(&POOL);
    let seal = |record: &Record| {
        record
            .seal(&key, &name(&POOL, "web1", 1), [9; NONCE_LEN])
            .map(|_| ())
    };
    let mut long = with_turns(vec![stored_with(0, None)]);
    long.turns[0].request = vec![b'x'; REQUEST_LEN_MAX];
    assert_eq!(seal(&long), Ok(()));
    long.turns[0].request.push(b'x');
    assert_eq!(seal(&long), Err(RecordError::Limit));
    let full = with_turns((0..16).map(|number| stored_with(number, None)).collect());
    assert_eq!(seal(&full), Ok(()));
    let over = with_turns((0..17).map(|number| stored_with(number, None)).collect());
    assert_eq!(seal(&over), Err(RecordError::Limit));
    let mut validators = with_turns(vec![stored_with(0, Some(download(5, None, 0)))]);
    let answer = validators.turns[0].answer.as_mut().unwrap();
    answer.version.etag = Some("x".repeat(SEALED_LEN_MAX));
    assert_eq!(seal(&validators), Err(RecordError::Limit));
}

#[test]
fn acknowledgement_chooses_the_response() {
    let record = with_turns(vec![
        stored_with(0, Some(download(1000, Some(1200), 0))),
        stored_with(1, Some(download(2200, Some(1200), 0))),
        stored_with(2, None),
    ]);
    let at = |ack| {
        record
            .response_at(SeqNumber(ack))
            .map(|(turn, offset)| (turn.number, offset))
    };
    assert_eq!(at(999), None);
    assert_eq!(at(1000), Some((0, 0)));
    assert_eq!(at(2199), Some((0, 1199)));
    assert_eq!(at(2200), Some((1, 0)));
    assert_eq!(at(3400), Some((1, 1200)), "complete");
    assert_eq!(at(3401), None, "no turn of the record");
    assert_eq!(with_turns(vec![]).response_at(SeqNumber(5)), None);
}

#[test]
fn record_of_an_earlier_connection_is_distinguished() {
    let record = with_turns(vec![]);
    assert!(record.is_of(SeqNumber(4), None));
    assert!(record.is_of(SeqNumber(4), Some(SeqNumber(3))));
    assert!(!record.is_of(SeqNumber(5), None));
    assert!(!record.is_of(SeqNumber(4), Some(SeqNumber(4))));
}

#[test]
fn names_are_short_and_readable() {
    let [client, server] =
        ["[fd00:1111:2222:3333:4444:5555:6666:7777]:40000"; 2].map(|text| text.parse().unwrap());
    let hash = HashName::new(server, MemberHash::of("web1", &POOL));
    let key = StoreKey::new(hash, FlowKey::new(client, server));
    assert!(key.flat().len() <= 165, "{}", key.flat().len());
    let short = name(&POOL, "web1", 40_000);
    assert_eq!(short.field(), "10.0.0.1:40000>10.0.0.10:80");
    assert!(short.hash.to_string().starts_with("o:10.0.0.10:80:"));
    assert_eq!(
        short.flat(),
        std::format!("{}:{}", short.hash, short.field())
    );
    let other_pool = MemberHash::of("web1", &PoolKey([2; 16]));
    assert_ne!(other_pool, short.hash.member());
    for other in [
        "10.0.0.1:040000>10.0.0.10:80",
        "10.0.0.1:1",
        "[::ffff:10.0.0.1]:1>10.0.0.10:80",
        "",
    ] {
        assert_eq!(StoreKey::flow_of(other), None, "{other}");
    }
}

/// About 600 bytes: one write per long download.
#[test]
fn record_of_a_usual_download_is_small() {
    let mut turn = stored_with(0, Some(download(5, Some(1200), 0)));
    turn.request = vec![b'x'; 400];
    let record = with_turns(vec![turn]);
    let sealed = record
        .seal(
            &RecordKey::of(&POOL),
            &name(&POOL, "web1", 1),
            [9; NONCE_LEN],
        )
        .unwrap();
    assert!(sealed.len() < 520, "{}", sealed.len());
}

#[test]
fn seeds_have_the_properties() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds/record");
    let mut count = 0;
    for seed in std::fs::read_dir(seeds).expect("seeds") {
        let bytes = std::fs::read(seed.expect("a file").path()).expect("a seed");
        properties::record(&bytes);
        count += 1;
    }
    assert!(count > 0);
}

/// A member of the version before reads all records but of responses with inputs.
#[test]
fn version_of_a_record_tells_of_inputs() {
    let key = RecordKey::of(&POOL);
    let mut record = with_turns(vec![stored_with(0, None)]);
    for (inputs, version) in [
        (None, 1),
        (Some(b"seed=7".to_vec()), 2),
        (Some(Vec::new()), 2),
    ] {
        record.inputs = inputs;
        let sealed = record.seal(&key, &name(&POOL, "web1", 1), [9; NONCE_LEN]);
        assert_eq!(sealed.unwrap()[0], version);
    }
    record.inputs = Some(vec![b'x'; INPUTS_LEN_MAX + 1]);
    let sealed = record.seal(&key, &name(&POOL, "web1", 1), [9; NONCE_LEN]);
    assert_eq!(sealed, Err(RecordError::Limit));
}
