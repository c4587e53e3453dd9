//! Any bytes on the control socket of `serve`, and as requests to the loggers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    serve::control::properties::questions(bytes);
    logger::properties::requests(bytes);
});
