//! Any bytes as a record of the north side wrap, and as the message of a replayed process about its connections.
#![no_main]

use north_abi::{
    ReadyReader, Records, Tick,
    handover::{Entry, Message},
};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for (at, record) in Records::new(bytes).flatten() {
        assert!(at < bytes.len());
        let _ = (
            ReadyReader::new(record.payload).count(),
            Tick::from_record(&record),
        );
    }
    let mut rest = bytes;
    while let Some((entry, length)) = Entry::read(rest) {
        assert_eq!(entry.header()[4..8], rest[4..8]);
        rest = &rest[length..];
    }
    let _ = Message::from_bytes(bytes);
});
