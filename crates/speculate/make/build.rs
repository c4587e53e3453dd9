//! Builds three files that are part of this crate: the library that is preloaded into make, the program that stands in
//! the place of make, and the program that runs in the place of each command.

use shim_build::Shim;

/// Each with the end of the variable that tells the crate the path.
const FILES: [(&str, &str); 3] = [
    ("LIBRARY", "liboutlive_make.so"),
    ("STAND_IN", "outlive-make-stand-in"),
    ("RUNNER", "outlive-make-runner"),
];

fn main() {
    let shim = Shim {
        directory: "make-shim",
        others: &["make-rpc"],
        features: &[],
        files: &FILES.map(|(_, file)| file),
    };
    let built = shim.build();
    for (name, file) in FILES {
        let file = built.join(file);
        println!("cargo::rustc-env=OUTLIVE_MAKE_{name}={}", file.display());
    }
}
