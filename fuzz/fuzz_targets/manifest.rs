//! Any text as the manifest of an image.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checkpoint::properties::image_manifest(bytes));
