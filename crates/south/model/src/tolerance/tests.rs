use super::*;
use proptest::prelude::*;

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nServer: x\r\ndate: Sat, 21 Nov 2026 02:00:00 GMT\r\nContent-Length: 3\r\n\r\nabc";

fn masks(bytes: &[u8]) -> (String, String) {
    let chunks = expectations(&[(SeqNumber(0), bytes.to_vec())], &[], DEFAULT_FIELDS);
    let pick = |mask: fn(&Expect) -> &[u8; EXPECT_CHUNK]| -> String {
        chunks
            .values()
            .flat_map(|chunk| chunk.bytes.iter().zip(mask(chunk)))
            .filter(|(_, mask)| **mask == 0xff)
            .map(|(byte, _)| char::from(*byte))
            .collect()
    };
    (pick(|chunk| &chunk.strict), pick(|chunk| &chunk.soft))
}

#[test]
fn the_value_of_a_date_field_may_differ() {
    let (strict, soft) = masks(HEAD);
    assert_eq!(soft, " Sat, 21 Nov 2026 02:00:00 GMT");
    assert_eq!(strict.len() + soft.len(), HEAD.len());
    assert!(strict.ends_with("\r\nContent-Length: 3\r\n\r\nabc"));
}

#[test]
fn a_date_in_a_body_is_strict() {
    let body = b"HTTP/1.1 200 OK\r\n\r\nno head\r\nDate: never\r\n";
    assert_eq!(masks(body).1, "");
}

#[test]
fn what_is_no_http_is_strict() {
    assert_eq!(masks(b"Date: is only a word here\r\n").1, "");
}

#[test]
fn a_record_that_ends_within_the_value_is_soft_to_its_end() {
    let cut = &HEAD[..40];
    assert!(masks(cut).1.starts_with(" Sat"));
}

#[test]
fn a_second_head_after_an_interim_one_is_understood() {
    let heads = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nDate: now\r\n\r\n";
    assert_eq!(masks(heads).1, " now");
}

#[test]
fn later_responses_of_the_same_connection_are_found_behind_their_bodies() {
    let by_length = [HEAD, HEAD].concat();
    assert_eq!(masks(&by_length).1.matches("GMT").count(), 2);
    let chunked =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nDate:\r\n0\r\nA: b\r\n\r\n";
    assert_eq!(masks(&[chunked, HEAD].concat()).1.matches("GMT").count(), 1);
    let head_only = b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n";
    assert_eq!(
        masks(&[head_only, HEAD].concat()).1.matches("GMT").count(),
        1
    );
}

#[test]
fn where_the_record_is_cut_into_pieces_does_not_matter() {
    let whole = [HEAD, HEAD, HEAD].concat();
    let expected = expectations(&[(SeqNumber(7), whole.clone())], &[], DEFAULT_FIELDS);
    for cut in 1..whole.len() {
        let (one, two) = whole.split_at(cut);
        let second = SeqNumber(7) + u32::try_from(cut).unwrap();
        let pieces = [(SeqNumber(7), one.to_vec()), (second, two.to_vec())];
        assert_eq!(
            expectations(&pieces, &[], DEFAULT_FIELDS),
            expected,
            "cut at {cut}"
        );
    }
}

/// The beginning of the answer before was lost with a host, or with the logger.
#[test]
fn head_behind_the_rest_of_an_answer_is_found_where_an_answer_begins() {
    let start = SeqNumber(u32::MAX - 20);
    let rest = [b'x'; 60];
    let bytes = [&rest[..], HEAD, HEAD].concat();
    let ranges = [(start, bytes)];
    let soft = |answers: &[SeqNumber]| {
        let chunks = expectations(&ranges, answers, DEFAULT_FIELDS);
        let masks = chunks.values().flat_map(|chunk| chunk.soft);
        masks.filter(|mask| *mask == 0xff).count()
    };
    let value = " Sat, 21 Nov 2026 02:00:00 GMT".len();
    let (first, second) = (start + 60, start + 60 + length32(HEAD.len()));
    assert_eq!(soft(&[]), 0);
    assert_eq!(soft(&[start, first]), 2 * value, "the second follows");
    assert_eq!(soft(&[start - 500, first, second, second + 500]), 2 * value);
    assert_eq!(soft(&[second]), value);
    assert_eq!(soft(&[first + 1]), 0, "nothing begins there");
}

/// The length of the answer before is known, if the rest of its head was not lost.
#[test]
fn head_behind_a_gap_is_found_by_the_length_of_the_answer_before() {
    let length = 2000;
    let before = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    let whole = [before.as_bytes(), &[b'x'; 2000], HEAD, HEAD].concat();
    let start = SeqNumber(u32::MAX - 500);
    let soft = |gap: Range<usize>| {
        let (first, second) = (whole[..gap.start].to_vec(), whole[gap.end..].to_vec());
        let ranges = [(start, first), (start + length32(gap.end), second)];
        let chunks = expectations(&ranges, &[], DEFAULT_FIELDS);
        let masks = chunks.values().flat_map(|chunk| chunk.soft);
        masks.filter(|mask| *mask == 0xff).count()
    };
    let value = " Sat, 21 Nov 2026 02:00:00 GMT".len();
    let next = before.len() + length;
    assert_eq!(soft(before.len()..next - 1), 2 * value);
    assert_eq!(soft(1000..1500), 2 * value);
    assert_eq!(soft(before.len()..next), 2 * value, "nothing of the body");
    assert_eq!(soft(before.len() - 2..1500), 0, "the head has no end");
    assert_eq!(soft(1000..next + 20), 0, "where an answer begins is lost");
}

proptest! {
    #[test]
    fn strict_and_soft_are_disjoint_and_cover_the_record(
        start: u32,
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        as_http: bool,
    ) {
        let bytes = if as_http { [HEAD, &bytes].concat() } else { bytes };
        let chunks = expectations(&[(SeqNumber(start), bytes.clone())], &[], DEFAULT_FIELDS);
        let mut covered = 0;
        for chunk in chunks.values() {
            for i in 0..EXPECT_CHUNK {
                prop_assert!(chunk.strict[i] & chunk.soft[i] == 0);
                covered += usize::from(chunk.strict[i] | chunk.soft[i] == 0xff);
            }
        }
        prop_assert_eq!(covered, bytes.len());
        for (i, byte) in bytes.iter().enumerate() {
            let seq = start.wrapping_add(u32::try_from(i).unwrap());
            prop_assert_eq!(chunks[&(seq / 512)].bytes[seq as usize % 512], *byte);
        }
    }
}
