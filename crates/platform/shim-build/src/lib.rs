//! Builds what is preloaded into programs: for build scripts of the crates that have it in them.

use std::{env, path::PathBuf, process::Command};

/// What would make it another one than what is shipped.
const NOT_PASSED_ON: [&str; 4] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_TARGET_DIR",
];

/// Builds that crate of the workspace, which is in a directory beside the one of the crate that is built now, as
/// `others` are that it is made of. The directory with what came of it.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn build(package: &str, others: &[&str]) -> PathBuf {
    let directory = |name| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    let beside = directory("CARGO_MANIFEST_DIR").join("..");
    for source in others.iter().chain([&package]) {
        println!("cargo::rerun-if-changed={}", beside.join(source).display());
    }
    // Always as it is shipped: it runs in the middle of somebody else's program. In a directory of its own,
    // since the one around us is locked.
    let target = directory("OUT_DIR").join("shim");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo.current_dir(beside.join(package));
    cargo.args(["build", "--profile", "shim", "--package", package]);
    cargo.arg("--target-dir").arg(&target);
    for name in NOT_PASSED_ON {
        cargo.env_remove(name);
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "{package} cannot be built");
    target.join("shim")
}
