use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{SpawnError, resolve_in};

/// A directory with a program, a plain file and a directory.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    file(&dir.path().join("program"), 0o755);
    file(&dir.path().join("plain"), 0o644);
    fs::create_dir(dir.path().join("directory")).expect("a directory");
    symlink("nowhere", dir.path().join("dangling")).expect("a symbolic link");
    dir
}

fn file(path: &Path, mode: u32) {
    fs::write(path, "#!/bin/sh\n").expect("a file");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("its mode");
}

fn resolve(argv0: impl AsRef<OsStr>, path: &Path) -> Result<PathBuf, SpawnError> {
    resolve_in(argv0.as_ref(), path.as_os_str())
}

#[test]
fn bare_names_are_searched_in_path() {
    let dir = directory();
    let program = dir.path().join("program");
    assert_eq!(resolve("program", dir.path()).expect("found"), program);
    assert_eq!(
        resolve(&program, Path::new("/none")).expect("found"),
        program
    );
}

#[test]
fn lookup_errors_are_distinguished() {
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    let none = Path::new("/none");
    let error = |r: Result<PathBuf, SpawnError>| r.expect_err("nothing to run");
    assert!(matches!(error(resolve("", none)), SpawnError::Empty));
    for name in ["missing", "dangling", "program/x"] {
        let e = error(resolve(path(name), none));
        assert!(matches!(e, SpawnError::NoSuchFile { .. }), "{name}: {e}");
    }
    let e = error(resolve(path("plain"), none));
    assert!(matches!(&e, SpawnError::NotExecutable { path: p } if *p == path("plain")));
    assert!(e.to_string().contains("chmod +x"), "{e}");
    let e = error(resolve(path("directory"), none));
    assert!(matches!(e, SpawnError::IsDirectory { .. }), "{e}");
    let e = error(resolve("missing", dir.path()));
    assert!(
        matches!(&e, SpawnError::NotFound { path, .. } if path == dir.path()),
        "{e}"
    );
    assert!(
        e.to_string().contains(&*dir.path().to_string_lossy()),
        "{e}"
    );
}

#[test]
fn search_skips_non_executable_file() {
    let (first, second) = (directory(), directory());
    file(&second.path().join("plain"), 0o755);
    let both = std::env::join_paths([first.path(), second.path()]).expect("a PATH");
    let found = resolve_in(OsStr::new("plain"), &both).expect("the second");
    assert_eq!(found, second.path().join("plain"));

    let error = resolve_in(OsStr::new("directory"), &both).expect_err("two directories");
    assert!(
        matches!(error, SpawnError::IsDirectory { path } if path == first.path().join("directory"))
    );
}

#[test]
fn relative_path_becomes_absolute() {
    let here = std::env::current_dir().expect("a working directory");
    let error = resolve_in(OsStr::new("./src"), OsStr::new("")).expect_err("a directory");
    assert!(
        matches!(&error, SpawnError::IsDirectory { path } if *path == here.join("src")),
        "{error}"
    );
    // An empty element of PATH is the working directory.
    let error = resolve_in(&OsString::from("src"), OsStr::new("/none:")).expect_err("a directory");
    assert!(
        matches!(&error, SpawnError::IsDirectory { path } if *path == here.join("src")),
        "{error}"
    );
}
