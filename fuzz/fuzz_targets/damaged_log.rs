//! A log in which a disk has changed bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wal::properties::damaged_log(bytes));
