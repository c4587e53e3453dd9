//! The files and variables that let a make ask for its commands.

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

/// Chooses a directory for the files. Programs can run from there, also concealed ones. `runtime` is the run
/// directory of the user.
///
/// # Errors
/// No directory is suitable.
pub fn place(runtime: Option<PathBuf>) -> io::Result<PathBuf> {
    let mut all = runtime
        .into_iter()
        .chain(FALLBACK_DIRECTORIES.map(PathBuf::from));
    let runs = |place: &PathBuf| {
        if place == Path::new(FALLBACK_DIRECTORIES[1]) {
            // This directory exists for this purpose.
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

/// Removes files of dead processes.
fn remove_stale(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        let name = entry.file_name();
        let process = name
            .to_str()
            .and_then(|name| name.strip_prefix(FILE_PREFIX));
        let process = process.and_then(|it| it.split('.').next());
        let process = process.and_then(|it| it.parse::<u32>().ok());
        let is_gone = |process: u32| !Path::new("/proc").join(process.to_string()).exists();
        // An earlier process had the number of this process.
        if process.is_some_and(|it| it == std::process::id() || is_gone(it)) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Writes a new file: an existing file of that name belongs to another program.
fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut new = fs::File::options();
    let mut file = new.write(true).create_new(true).mode(mode).open(path)?;
    // Independent of the umask of this process.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)
}

/// The files that let a make ask for its commands. The files exist as long as this value.
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
    /// Makes the files in that directory, which concealed programs see. `socket` is the address of the engine, and
    /// `make` the program that is replaced.
    ///
    /// # Errors
    /// The errors of the file system.
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
        // The path as this process sees it: concealed programs see the stand-in there.
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

    /// Variables for a make that is not concealed.
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

    /// The stand-in, and the program in whose place concealed programs see the stand-in.
    #[must_use]
    pub fn instead(&self) -> (&Path, &Path) {
        (&self.stand_in, &self.make)
    }

    /// Address of the engine.
    #[must_use]
    pub fn socket(&self) -> &str {
        &self.socket
    }
}

impl Preload {
    /// Removes the files.
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
            // Any answer except a panic; a text may differ.
            let _ = trailer::read(&other);
        }
    }
}
