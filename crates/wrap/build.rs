//! Builds the library that is preloaded into servers, which is part of this crate.

use std::{env, path::PathBuf, process::Command};

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for source in ["../wrap-shim", "../wrap-abi", "../protocol", "../wire"] {
        println!("cargo::rerun-if-changed={}", here.join(source).display());
    }
    // Always as it is shipped: it runs in the middle of somebody else's program. In a directory of its own,
    // since the one around us is locked.
    let target = out.join("shim");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo.current_dir(here.join("../wrap-shim"));
    cargo
        .args([
            "build",
            "--profile",
            "shim",
            "--package",
            "wrap-shim",
            "--target-dir",
        ])
        .arg(&target);
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_TARGET_DIR",
    ] {
        cargo.env_remove(name);
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the preloaded library cannot be built");
    let library = target.join("shim/liboutlive_wrap.so");
    println!(
        "cargo::rustc-env=OUTLIVE_WRAP_LIBRARY={}",
        library.display()
    );
}
