//! The kernel's information about processes, as text (proc(5)).

use std::{fs, io, path::Path, str::FromStr};

use rustix::{io::Errno, process::Pid};

/// The text after a key at the beginning of a line of the file.
pub(crate) fn line(file: impl AsRef<Path>, key: &str) -> io::Result<String> {
    let about = fs::read_to_string(file)?;
    let line = about.lines().find_map(|line| line.strip_prefix(key));
    Ok(line.ok_or(io::ErrorKind::NotFound)?.trim().to_owned())
}

/// A number in the `stat` of a process or a thread, counted from the field after name and state: number 0 is the
/// parent.
pub(crate) fn number<T: FromStr>(process: u32, which: usize) -> Option<T> {
    let about = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may contain any characters.
    let (_, after) = about.rsplit_once(')')?;
    after.split_whitespace().nth(which + 1)?.parse().ok()
}

/// The process of a thread.
pub(crate) fn process_of(thread: u32) -> Result<Pid, Errno> {
    let process = line(format!("/proc/{thread}/status"), "Tgid:");
    let process = process.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::SRCH))?;
    let process = process.parse().ok().and_then(Pid::from_raw);
    process.ok_or(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_own_process_is_read() {
        let this = std::process::id();
        let thread = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        assert_eq!(process_of(thread), Ok(rustix::process::getpid()));
        let parent = rustix::process::getppid().map(Pid::as_raw_pid);
        assert_eq!(number(this, 0), parent);
        let missing = line("/proc/self/status", "Nothing:").expect_err("there is none");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert_eq!(process_of(0), Err(Errno::NOENT));
    }
}
