//! Names in places that all run directories of a host share: the cgroup hierarchy, the host's bpffs.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

/// The usual run directory.
const DEFAULT_RUN_DIRECTORY: &str = "/run/outlive";

/// A name that is unique on the host: equal names in two run directories are two services.
#[must_use]
pub fn host_name(run_dir: &Path, name: &str) -> String {
    if run_dir == Path::new(DEFAULT_RUN_DIRECTORY) {
        return name.to_owned();
    }
    let mut hasher = DefaultHasher::new(); // SipHash with fixed keys: the same in every process
    run_dir.hash(&mut hasher);
    format!("{name}~{:08x}", hasher.finish() >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_another_run_directory_differs() {
        assert_eq!(host_name(Path::new("/run/outlive"), "pool"), "pool");
        let [one, two] = ["/a", "/b"].map(|run_dir| host_name(Path::new(run_dir), "pool"));
        assert_ne!(one, two);
    }
}
