//! Any bytes as a mirror frame.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::properties::mirror_frame(bytes));
