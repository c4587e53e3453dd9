//! Any bytes as an IP packet, and as TCP options.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    wire::properties::packet(bytes);
    wire::properties::options(bytes);
});
