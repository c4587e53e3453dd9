//! The lock of the logger process that reads the ring.
//!
//! A ring has a single reader: each of two readers would get a part of the frames, and both records would have gaps.
//! A logger process holds the lock for as long as it runs. A process that hangs holds the lock, too, so `serve` ends
//! the process before the next process starts.

use std::{fs, path::Path};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::{KILL_TIMEOUT, READER_LOCK, Unended};
use crate::{
    error::{ServeError, SystemContext as _},
    rundir::Holder,
};

/// Kills the logger process that reads the ring of the service in this directory, if a process reads the ring, and
/// waits for the end of the process.
pub(super) fn end_holder(directory: &Path) -> Result<(), ServeError> {
    let lock = directory.join(READER_LOCK);
    let Some(holder) = Holder::of(&lock) else {
        return Ok(());
    };
    let unknown = || {
        ServeError::Logger(format!(
            "a logger process of another PID namespace reads the ring, and holds {}: end that process",
            lock.display()
        ))
    };
    let pid = holder.pid.ok_or_else(unknown)?;
    if !kill(pid, &lock).doing("end the logger process that reads the ring")? {
        // A killed process executes no more instructions of the logger: a lock at another file does no harm.
        tracing::warn!("{}", Unended(pid.as_raw_pid().unsigned_abs()));
        fs::remove_file(&lock).doing("remove the lock of a killed logger process")?;
    }
    Ok(())
}

/// Tells whether the process has ended.
fn kill(pid: Pid, lock: &Path) -> Result<bool, Errno> {
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return Ok(true),
        Err(error) => return Err(error),
    };
    // The number may have gone to another process before the number was opened.
    if Holder::of(lock).and_then(|holder| holder.pid) != Some(pid) {
        return Ok(true);
    }
    pidfd_send_signal(&pidfd, Signal::KILL)?;
    let timeout = Timespec::try_from(KILL_TIMEOUT).unwrap_or_default();
    loop {
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn stopped_reader_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        assert!(end_holder(directory.path()).is_ok(), "there is no lock");
        let lock = directory.path().join(READER_LOCK);
        let python = "import fcntl, os, signal, sys\n\
                      file = open(sys.argv[1], 'w')\n\
                      fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n\
                      print('locked', flush=True)\n\
                      os.kill(os.getpid(), signal.SIGSTOP)\n\
                      signal.pause()";
        let mut reader = Command::new("/usr/bin/python3");
        reader
            .args(["-c", python])
            .arg(&lock)
            .stdout(Stdio::piped());
        let mut reader = reader.spawn().unwrap();
        let mut line = String::new();
        let mut told = BufReader::new(reader.stdout.take().unwrap());
        told.read_line(&mut line).unwrap();
        assert_eq!(line, "locked\n");
        end_holder(directory.path()).unwrap();
        assert_eq!(Holder::of(&lock), None);
        assert!(!reader.wait().unwrap().success());
    }
}
