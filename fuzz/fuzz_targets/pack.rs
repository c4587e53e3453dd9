//! Any bytes as an image from another host.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checkpoint::properties::packed_image(bytes));
