//! Any bytes as what is written to the control socket of `serve`, and as requests to its loggers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    serve::control::properties::questions(bytes);
    logger::properties::requests(bytes);
});
