//! Any bytes as an entry of the log.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| logger::properties::log_entry(bytes));
