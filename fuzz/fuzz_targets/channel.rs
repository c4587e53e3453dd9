//! Any bytes as what a stranger sends to a logger.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| channel::properties::strangers_bytes(bytes));
