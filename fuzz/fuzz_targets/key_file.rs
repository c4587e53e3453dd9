//! Any bytes as a key file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| channel::properties::key_file(bytes));
