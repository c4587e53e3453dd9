//! Any bytes on a data connection of a bulk transfer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bulk::properties::connection_bytes(bytes));
