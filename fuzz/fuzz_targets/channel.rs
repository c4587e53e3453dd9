//! Any bytes from an unknown peer of a logger.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| channel::properties::strangers_bytes(bytes));
