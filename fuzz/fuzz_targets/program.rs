//! Any bytes as the file of a program that is to take the library.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| north_host::program::properties::program(bytes));
