//! Any bytes as a datagram of the log link.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::properties::link_datagram(bytes));
