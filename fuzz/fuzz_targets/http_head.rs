//! Any bytes as the head of a request and of a response, as a body in chunks, and as a range.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    http1::properties::head(bytes);
    http1::properties::chunks(bytes);
    if let Ok(text) = str::from_utf8(bytes) {
        http1::properties::range(text);
    }
});
