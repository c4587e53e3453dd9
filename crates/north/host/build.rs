//! Builds the library that is preloaded into servers, which is part of this crate.

use shim_build::Shim;

const LIBRARY: &str = "liboutlive_wrap.so";

fn main() {
    let shim = Shim {
        directory: "shim",
        others: &["abi", "../core/protocol", "../core/types", "../core/wire"],
        features: &["next-version"],
        files: &[LIBRARY],
    };
    let library = shim.build().join(LIBRARY);
    println!(
        "cargo::rustc-env=OUTLIVE_WRAP_LIBRARY={}",
        library.display()
    );
}
