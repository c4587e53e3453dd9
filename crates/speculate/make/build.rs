//! Builds three files that are part of this crate: the library that is preloaded into make, the program that stands in
//! the place of make, and the program that runs in the place of each command.

fn main() {
    let built = shim_build::build("make-shim", &["make-rpc"]);
    for (name, file) in [
        ("LIBRARY", "liboutlive_make.so"),
        ("STAND_IN", "outlive-make-stand-in"),
        ("RUNNER", "outlive-make-runner"),
    ] {
        let file = built.join(file);
        println!("cargo::rustc-env=OUTLIVE_MAKE_{name}={}", file.display());
    }
}
