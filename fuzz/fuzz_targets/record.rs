//! Any bytes as a sealed record of a connection, and as its contents.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    objects::record::properties::record(bytes);
    if let Ok(text) = str::from_utf8(bytes) {
        objects::record::properties::field(text);
    }
});
