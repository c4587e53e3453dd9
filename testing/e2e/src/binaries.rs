//! Where the programs under test are.

use std::path::PathBuf;

/// The `outlive` binary: what `OUTLIVE_BIN` names, else the one in the directory in which
/// cargo builds the workspace's binaries.
///
/// # Panics
/// When there is none.
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

/// Our own small server, see `src/bin/test-server.rs`. Cargo builds it with these tests.
///
/// # Panics
/// When it is not there.
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
