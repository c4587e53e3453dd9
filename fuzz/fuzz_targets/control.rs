//! Any bytes as a stream of control messages, in both directions.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::properties::control_stream(bytes));
