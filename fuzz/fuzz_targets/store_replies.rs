//! Any bytes as replies of Valkey, Redis and memcached.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::properties::replies(bytes));
