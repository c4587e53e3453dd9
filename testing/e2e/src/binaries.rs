//! Where the programs under test are.

use std::path::PathBuf;

/// The `outlive` binary: the program in `OUTLIVE_BIN`, else the program in the directory in which cargo builds the
/// workspace's binaries.
///
/// # Panics
/// When there is no such file.
#[must_use]
pub fn outlive() -> PathBuf {
    let path = std::env::var_os("OUTLIVE_BIN").map_or_else(|| built("outlive"), PathBuf::from);
    assert!(
        path.is_file(),
        "there is no {}: `make test` builds it, or set OUTLIVE_BIN",
        path.display()
    );
    path
}

/// The `outlive` of the next version of the formats (feature `next-version`): the program in `OUTLIVE_NEXT_BIN`, by
/// default in `next-version` beside the directory of this build.
///
/// # Panics
/// When there is no such file.
#[must_use]
pub fn next_outlive() -> PathBuf {
    let built = || {
        let own = built("outlive");
        let target = own.parent().and_then(|profile| profile.parent());
        target
            .expect("a profile has a directory")
            .join("next-version/outlive")
    };
    let path = std::env::var_os("OUTLIVE_NEXT_BIN").map_or_else(built, PathBuf::from);
    assert!(
        path.is_file(),
        "there is no {}: `make test` builds it, or set OUTLIVE_NEXT_BIN to a program that was built with \
         --features next-version",
        path.display()
    );
    path
}

/// The small test server, see `src/bin/test-server.rs`. Cargo builds the server with these tests.
///
/// # Panics
/// When there is no such file.
#[must_use]
pub fn test_server() -> PathBuf {
    let path = built("test-server");
    assert!(path.is_file(), "there is no {}", path.display());
    path
}

/// A binary of this workspace: tests run from `<target>/<profile>/deps`.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a process knows its file");
    let profile = own.parent().and_then(|deps| deps.parent());
    profile
        .expect("tests run from cargo's directory")
        .join(name)
}
