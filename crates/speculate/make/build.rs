//! Builds the library that is preloaded into make, the program that stands in its place, and the one that it begins in the place of each
//! command: they are part of this crate.

fn main() {
    // The runner has these words in common with the engine.
    let shared = ["command", "environment", "jobserver", "link", "runner"];
    let shared = shared.map(|name| format!("make/src/{name}.rs"));
    let built = shim_build::build("make-shim", &shared.each_ref().map(String::as_str));
    for (name, file) in [
        ("LIBRARY", "liboutlive_make.so"),
        ("STAND_IN", "outlive-make-stand-in"),
        ("RUNNER", "outlive-make-runner"),
    ] {
        let file = built.join(file);
        println!("cargo::rustc-env=OUTLIVE_MAKE_{name}={}", file.display());
    }
}
