//! A record that arrives in pieces: the file has whole records only.

use north_abi::{HEADER_MAX, Record};
use north_host::{Call, LogFeed, Memory};
use proptest::prelude::*;

fn stream(payloads: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = Vec::new();
    let mut ends = vec![0];
    for payload in payloads {
        let outcome = i64::try_from(payload.len()).expect("short");
        let record = Record {
            call: Call::Read,
            fd: 7,
            outcome,
            payload,
        };
        let mut header = [0; HEADER_MAX];
        let length = record.header().write(&mut header);
        bytes.extend_from_slice(&header[..length]);
        bytes.extend_from_slice(payload);
        ends.push(bytes.len());
    }
    (bytes, ends)
}

proptest! {
    #[test]
    fn torn_input_appends_whole_records(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
        pieces in prop::collection::vec(0usize..400, 0..40),
    ) {
        let (bytes, ends) = stream(&payloads);
        let memory = Memory::new().unwrap();
        let mut feed = LogFeed::new(0);
        let mut at = 0;
        for piece in pieces {
            let end = bytes.len().min(at + piece);
            feed.take(&memory, &bytes[at..end]).unwrap();
            at = end;
            let whole = ends.iter().copied().filter(|end| *end <= at).max().unwrap();
            prop_assert_eq!(memory.length(0), whole as u64);
            prop_assert_eq!(feed.is_torn(), whole < at);
            let mut there = vec![0; whole];
            memory.read(0, 0, &mut there).unwrap();
            prop_assert!(there == bytes[..whole]);
        }
    }
}
