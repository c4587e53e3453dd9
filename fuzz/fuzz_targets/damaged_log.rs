//! A log, and bytes in it that a disk has changed.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| segments::properties::damaged_log(bytes));
