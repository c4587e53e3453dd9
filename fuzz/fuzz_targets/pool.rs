//! Any bytes as a stream between a member of a pool and the balancer, in both directions.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::properties::pool_stream(bytes));
