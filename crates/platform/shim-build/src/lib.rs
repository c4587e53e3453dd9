//! Builds shims: for the build scripts of the crates that embed a shim.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Variables that would make the built shim differ from the shipped shim.
const NOT_PASSED_ON: [&str; 4] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_TARGET_DIR",
];

/// A crate that is built for itself.
#[derive(Debug)]
pub struct Shim<'a> {
    /// Directory, beside the directory of the crate that is built now.
    pub directory: &'a str,
    /// Directories of the crates that the shim depends on, in the same way: a change there triggers a new build.
    pub others: &'a [&'a str],
    /// Features that the shim gets if the crate that is built now has these.
    pub features: &'a [&'a str],
    /// Names of the built files.
    pub files: &'a [&'a str],
}

impl Shim<'_> {
    /// Builds the shim. Returns the directory with copies of the files.
    ///
    /// # Panics
    /// Cargo cannot build the shim.
    #[must_use]
    pub fn build(&self) -> PathBuf {
        let variable = |name| PathBuf::from(env::var_os(name).expect("cargo sets it"));
        let beside = variable("CARGO_MANIFEST_DIR").join("..");
        for source in self.others.iter().chain([&self.directory]) {
            println!("cargo::rerun-if-changed={}", beside.join(source).display());
        }
        let out = variable("OUT_DIR");
        // The profile is always that of the shipped shim, because a shim runs inside of another program.
        let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
        cargo.current_dir(beside.join(self.directory));
        cargo.args(["build", "--profile", "shim"]);
        let has = |feature: &str| {
            let name = feature.to_uppercase().replace('-', "_");
            env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
        };
        let features = self.features.iter().copied().filter(|feature| has(feature));
        let features: Vec<&str> = features.collect();
        // Two builds of a shim with other features, at the same time, do not take each other's files.
        let target = shared_target(&out).join(features.join("+"));
        cargo.arg("--target-dir").arg(&target);
        for feature in features {
            cargo.args(["--features", feature]);
        }
        for name in NOT_PASSED_ON {
            cargo.env_remove(name);
        }
        let status = cargo.status().expect("cargo runs");
        assert!(status.success(), "{} cannot be built", self.directory);
        for file in self.files {
            let copied = fs::copy(target.join("shim").join(file), out.join(file));
            assert!(copied.is_ok(), "{file}: {copied:?}");
        }
        out
    }
}

/// The directory of the target directories of shims: crates that several shims depend on are compiled once. The outer
/// build locks its own, `TARGET/PROFILE/build/CRATE/out`.
fn shared_target(out: &Path) -> PathBuf {
    let outer = out.ancestors().nth(4).unwrap_or(out);
    outer.join("shims")
}
