//! Any bytes as a datagram of a bulk transfer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::properties::blast_datagram(bytes));
