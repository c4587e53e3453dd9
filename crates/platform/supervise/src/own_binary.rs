//! The binary of this process, for processes that run the same binary.

use std::{
    env, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// The running binary, whatever its path holds now.
const RUNNING: &str = "/proc/self/exe";

/// A path by which this process, or a child before exec, executes the binary of this process again.
///
/// An upgrade replaces the file. Then the old path leads nowhere, or to another version: a process of another version
/// might not understand its parent. The kernel still has the old file under `/proc/self/exe`.
///
/// # Errors
/// Without `/proc`.
pub fn own_binary() -> io::Result<PathBuf> {
    Ok(path_of(&env::current_exe()?, Path::new(RUNNING)))
}

/// The path, as long as the path leads to the running file: the path is also the name of the process.
fn path_of(path: &Path, running: &Path) -> PathBuf {
    let file = |path: &Path| {
        let file = fs::metadata(path);
        file.map(|file| (file.dev(), file.ino())).ok()
    };
    let is_running = file(running).is_some_and(|running| file(path) == Some(running));
    if is_running { path } else { running }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_binary_is_executed_by_the_kernels_link() {
        let directory = tempfile::tempdir().unwrap();
        let [path, running, next] =
            ["outlive", "running", "next"].map(|one| directory.path().join(one));
        fs::write(&path, "this version").unwrap();
        fs::hard_link(&path, &running).unwrap();
        assert_eq!(path_of(&path, &running), path);
        fs::write(&next, "the next version").unwrap();
        fs::rename(&next, &path).unwrap();
        assert_eq!(path_of(&path, &running), running);
        fs::remove_file(&path).unwrap();
        assert_eq!(path_of(&path, &running), running);
    }

    #[test]
    fn unchanged_binary_is_executed_by_its_path() {
        assert_eq!(own_binary().unwrap(), env::current_exe().unwrap());
    }
}
