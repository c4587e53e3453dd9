//! Builds the library that is preloaded into servers, which is part of this crate.

fn main() {
    let built = shim_build::build_with(
        "shim",
        &["abi", "../core/protocol", "../core/types", "../core/wire"],
        &["next-version"],
    );
    let library = built.join("liboutlive_wrap.so");
    println!(
        "cargo::rustc-env=OUTLIVE_WRAP_LIBRARY={}",
        library.display()
    );
}
