//! Any records as a log of the logger.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| logger::properties::log_entries(bytes));
