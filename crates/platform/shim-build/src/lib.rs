//! Builds shims: for the build scripts of the crates that embed a shim.

use std::{env, path::PathBuf, process::Command};

/// Variables that would make the built shim differ from the shipped shim.
const NOT_PASSED_ON: [&str; 4] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_TARGET_DIR",
];

/// Builds the crate in `directory`, a sibling of the directory of the crate that is built now. A change in a directory
/// of `others`, the crates that the crate depends on, triggers a new build. Returns the directory of the built files.
///
/// # Panics
/// Cargo cannot build the crate.
#[must_use]
pub fn build(directory: &str, others: &[&str]) -> PathBuf {
    build_with(directory, others, &[])
}

/// The same, with those of `features` that the crate has that is built now.
///
/// # Panics
/// Cargo cannot build the crate.
#[must_use]
pub fn build_with(directory: &str, others: &[&str], features: &[&str]) -> PathBuf {
    let variable = |name| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    let beside = variable("CARGO_MANIFEST_DIR").join("..");
    for source in others.iter().chain([&directory]) {
        println!("cargo::rerun-if-changed={}", beside.join(source).display());
    }
    // The profile is always that of the shipped shim, because a shim runs inside of another program. The build has a
    // target directory of its own, because the outer build locks the outer directory.
    let target = variable("OUT_DIR").join("shim");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo.current_dir(beside.join(directory));
    cargo.args(["build", "--profile", "shim"]);
    cargo.arg("--target-dir").arg(&target);
    let has = |feature: &str| {
        let name = feature.to_uppercase().replace('-', "_");
        env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
    };
    for feature in features.iter().filter(|feature| has(feature)) {
        cargo.args(["--features", feature]);
    }
    for name in NOT_PASSED_ON {
        cargo.env_remove(name);
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "{directory} cannot be built");
    target.join("shim")
}
