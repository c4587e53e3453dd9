//! Any bytes as a segment of a log.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wal::properties::segment(bytes));
