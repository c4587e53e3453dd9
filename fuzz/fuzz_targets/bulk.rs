//! Any bytes as a stream between the sender and a receiver of bulk data, in both directions.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::properties::bulk_stream(bytes));
