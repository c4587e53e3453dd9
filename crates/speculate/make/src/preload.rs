//! How a make is made to ask for its commands.

use std::{
    ffi::OsStr,
    fs,
    io::{self, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use make_rpc::trailer;
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

use crate::command::Command;

/// The library that is preloaded into a make.
const SHIM_IMAGE: &[u8] = include_bytes!(env!("OUTLIVE_MAKE_LIBRARY"));
/// The program in the place of make, where programs are concealed.
const STAND_IN_IMAGE: &[u8] = include_bytes!(env!("OUTLIVE_MAKE_STAND_IN"));
/// The program in the place of each command of make.
const RUNNER_IMAGE: &[u8] = include_bytes!(env!("OUTLIVE_MAKE_RUNNER"));

/// Prefix of the files, before a process number.
const FILE_PREFIX: &str = "outlive-make-";
/// Directories for the files, beside the run directory of the user.
const FALLBACK_DIRECTORIES: [&str; 2] = ["/run", "/var/lib/outlive"];
/// A concealed command has a directory of its own there.
const PRIVATE_DIRECTORY: &str = "/dev/shm";

/// The directory for its files: programs can run from there, also where they are concealed. `runtime` is the user's.
///
/// # Errors
/// If there is none.
pub fn place(runtime: Option<PathBuf>) -> io::Result<PathBuf> {
    let mut all = runtime
        .into_iter()
        .chain(FALLBACK_DIRECTORIES.map(PathBuf::from));
    let runs = |place: &PathBuf| {
        if place == Path::new(FALLBACK_DIRECTORIES[1]) {
            // It is there for this.
            let _ = fs::create_dir_all(place);
        }
        let system = statvfs(place.as_path());
        let runs = system.is_ok_and(|it| !it.f_flag.contains(StatVfsMountFlags::NOEXEC));
        let is_ours = access(place.as_path(), Access::WRITE_OK).is_ok();
        place.is_absolute()
            && place.is_dir()
            && runs
            && is_ours
            && !place.starts_with(PRIVATE_DIRECTORY)
    };
    all.find(runs).ok_or_else(|| {
        let [run, other] = FALLBACK_DIRECTORIES;
        io::Error::other(format!(
            "make needs programs of ours, but none of $XDG_RUNTIME_DIR, {run} and {other} is a directory that may be written to, and that programs may run from (noexec): set XDG_RUNTIME_DIR to one"
        ))
    })
}

/// Files of processes that are gone, which had no time to remove them.
fn remove_stale(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        let name = entry.file_name();
        let process = name
            .to_str()
            .and_then(|name| name.strip_prefix(FILE_PREFIX));
        let process = process.and_then(|it| it.split('.').next());
        let process = process.and_then(|it| it.parse::<u32>().ok());
        let is_gone = |process: u32| !Path::new("/proc").join(process.to_string()).exists();
        // This process' own number had another one before.
        if process.is_some_and(|it| it == std::process::id() || is_gone(it)) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// A new file: what is there by that name already is not ours.
fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut new = fs::File::options();
    let mut file = new.write(true).create_new(true).mode(mode).open(path)?;
    // Whatever this process' mask is.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)
}

/// What makes a make ask for its commands. Its files are there as long as this is.
#[derive(Debug)]
pub struct Preload {
    shim: PathBuf,
    stand_in: PathBuf,
    runner: PathBuf,
    socket: String,
    /// The real make.
    make: PathBuf,
}

impl Preload {
    /// Its files are made in that directory, which programs see that are concealed. `socket` is where the engine
    /// listens, and `make` the program that others begin by its name.
    ///
    /// # Errors
    /// The file system's.
    pub fn new(directory: &Path, socket: String, make: &Path) -> io::Result<Self> {
        remove_stale(directory)?;
        let process = std::process::id();
        let this = Self {
            shim: directory.join(format!("{FILE_PREFIX}{process}.so")),
            stand_in: directory.join(format!("{FILE_PREFIX}{process}")),
            runner: directory.join(format!("{FILE_PREFIX}{process}.runner")),
            socket,
            make: make.canonicalize()?,
        };
        write(&this.shim, SHIM_IMAGE, 0o644)?;
        write(&this.runner, RUNNER_IMAGE, 0o755)?;
        // As this process sees it: where programs are concealed, something else is in its place.
        let real = Path::new("/proc")
            .join(process.to_string())
            .join("root")
            .join(this.make.strip_prefix("/").unwrap_or(&this.make));
        let texts = [
            this.runner.as_os_str(),
            OsStr::new(&this.socket),
            this.shim.as_os_str(),
            real.as_os_str(),
        ];
        let told = trailer::write(texts.map(OsStr::as_bytes));
        let told = told.ok_or_else(|| io::Error::other("a path is too long"))?;
        write(&this.stand_in, &[STAND_IN_IMAGE, &told].concat(), 0o755)?;
        Ok(this)
    }

    /// What is added to the environment of a make that is not concealed.
    #[must_use]
    pub fn environment(&self, of: &Command) -> Vec<(String, String)> {
        let other = of.environment.get("LD_PRELOAD");
        let shim = self.shim.display().to_string();
        let all = match other.and_then(|other| other.to_str()) {
            Some(other) if !other.is_empty() => format!("{shim}:{other}"),
            _ => shim,
        };
        vec![
            ("LD_PRELOAD".into(), all),
            (
                "OUTLIVE_MAKE_RUNNER".into(),
                self.runner.display().to_string(),
            ),
            ("OUTLIVE_MAKE_SOCKET".into(), self.socket.clone()),
            ("OUTLIVE_MAKE_TELLS".into(), "1".into()),
        ]
    }

    /// What is in the place of what, where programs are concealed.
    #[must_use]
    pub fn instead(&self) -> (&Path, &Path) {
        (&self.stand_in, &self.make)
    }

    /// Where the engine listens.
    #[must_use]
    pub fn socket(&self) -> &str {
        &self.socket
    }
}

impl Preload {
    /// Its files are of no use any more.
    pub fn remove(&self) {
        for file in [&self.shim, &self.stand_in, &self.runner] {
            let _ = fs::remove_file(file);
        }
    }
}

impl Drop for Preload {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::trailer;

    #[test]
    fn trailer_round_trip() {
        let texts: [&[u8]; 4] = [b"/bin/outlive", b"a name", b"", b"/usr/bin/make"];
        let told = trailer::write(texts).expect("short");
        assert_eq!(trailer::read(&told), Some(texts));
        assert_eq!(trailer::read(&[b"a program", &*told].concat()), Some(texts));
        for cut in 0..told.len() {
            assert_eq!(trailer::read(&told[..cut]), None, "{cut}");
            let mut other = told.clone();
            other[cut] ^= 0x80;
            // Any answer but a panic; a text may be another one.
            let _ = trailer::read(&other);
        }
    }
}
