//! The jobserver of GNU make: a pipe with a byte for each job that may run at the same time (GNU make, "POSIX
//! jobserver"). A speculative command has a jobserver of that command alone, behind the same numbers: a command that a
//! user waits for must not wait for a speculative command.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Write as _},
    os::{
        fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
};

use rustix::{
    io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd},
    pipe::{PipeFlags, pipe_with},
};

use crate::command::Command;

/// Variables that tell a make of the jobserver.
pub const JOBSERVER_VARIABLES: [&str; 2] = ["MAKEFLAGS", "MFLAGS"];
/// Words that tell of the jobserver: pipes, and the word of GNU make before 4.2.
const JOBSERVER_OPTIONS: [&[u8]; 2] = [b"--jobserver-auth=", b"--jobserver-fds="];
/// Numbers below this are reserved ([`reserve`]).
const RESERVED_BELOW: RawFd = 16;

/// Prefix of a named pipe (GNU make since 4.4).
const FIFO_PREFIX: &[u8] = b"fifo:";
/// Numbers for a command with a named pipe: at the place of execution, that name may lead to another pipe.
const FIFO_STAND_IN: Ends = [RESERVED_BELOW - 2, RESERVED_BELOW - 1];

/// The two ends of a pipe, as numbers.
pub type Ends = [RawFd; 2];

/// The jobserver of a command.
#[derive(Debug)]
pub struct Jobserver {
    ends: [OwnedFd; 2],
    numbers: Ends,
}

impl Jobserver {
    /// A jobserver for the command, if the command asks for a jobserver.
    pub fn of(command: &Command) -> io::Result<Option<Self>> {
        let Some(numbers) = command.jobserver else {
            return Ok(None);
        };
        if numbers
            .iter()
            .any(|number| !(3..RESERVED_BELOW).contains(number))
        {
            return Ok(None);
        }
        let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
        let leave = at_once(command).saturating_sub(1);
        File::from(to.try_clone()?).write_all(&vec![b'+'; leave])?;
        Ok(Some(Self {
            ends: [from, to],
            numbers,
        }))
    }

    /// Installs the jobserver in this process, between fork and exec.
    pub fn give(&self) -> io::Result<()> {
        for (end, number) in self.ends.iter().zip(self.numbers) {
            // SAFETY: the numbers are reserved: no descriptor of this program has them.
            if unsafe { libc::dup2(end.as_raw_fd(), number) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

/// Reserves the numbers below 16: commands get descriptors with these numbers.
///
/// # Errors
/// The errors of the kernel.
pub fn reserve() -> io::Result<Vec<OwnedFd>> {
    let null = File::open("/dev/null")?;
    let mut all = Vec::new();
    loop {
        let next = fcntl_dupfd_cloexec(&null, 3)?;
        if next.as_raw_fd() >= RESERVED_BELOW {
            return Ok(all);
        }
        all.push(next);
    }
}

/// The jobserver of this process, if the descriptors are open.
pub fn advertised(flags: Option<&OsStr>) -> Option<Ends> {
    let words = flags?.as_bytes().split(|byte| *byte == b' ');
    let last = words
        .filter_map(|word| {
            JOBSERVER_OPTIONS
                .iter()
                .find_map(|it| word.strip_prefix(*it))
        })
        .next_back()?;
    let mut numbers = std::str::from_utf8(last).ok()?.split(',').map(str::parse);
    let (Some(Ok(from)), Some(Ok(to)), None) = (numbers.next(), numbers.next(), numbers.next())
    else {
        return None;
    };
    (from > 2 && to > 2 && is_given(from) && is_given(to)).then_some([from, to])
}

/// Whether children of this process inherit a descriptor with that number, which is not negative.
pub fn is_given(number: RawFd) -> bool {
    // SAFETY: the call only asks for the flags of a descriptor.
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) });
    flags.is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
}

/// Whether the descriptor belongs to the jobserver of this process, which may be a named pipe.
pub fn is_of(number: RawFd, ends: Option<Ends>, flags: Option<&OsStr>) -> bool {
    let is_named = || {
        let name = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        let advertised = [FIFO_PREFIX, name.as_os_str().as_bytes()].concat();
        let mut words = flags?.as_bytes().split(|byte| *byte == b' ');
        Some(words.any(|word| word.ends_with(&advertised)))
    };
    ends.is_some_and(|ends| ends.contains(&number)) || is_named() == Some(true)
}

/// Replaces a named pipe in the words of a command by numbers.
pub fn without_name(command: &mut Command) {
    let instead = format!("{},{}", FIFO_STAND_IN[0], FIFO_STAND_IN[1]);
    for variable in JOBSERVER_VARIABLES {
        let flags = command.environment.get(variable);
        if let Some(renamed) = flags.and_then(|flags| renamed(flags, instead.as_bytes())) {
            command.environment.set(variable, renamed);
            command.jobserver = Some(FIFO_STAND_IN);
        }
    }
}

/// Whether the command had a named pipe ([`without_name`]).
pub fn had_name(command: &Command) -> bool {
    command.jobserver == Some(FIFO_STAND_IN)
}

/// The words with the replacement in the place of each name, if the words have a name.
fn renamed(flags: &OsStr, instead: &[u8]) -> Option<OsString> {
    let mut has_one = false;
    let words = flags.as_bytes().split(|byte| *byte == b' ').map(|word| {
        let is_named = |it: &&&[u8]| {
            let advertised = word.strip_prefix(**it);
            advertised.is_some_and(|advertised| advertised.starts_with(FIFO_PREFIX))
        };
        let Some(prefix) = JOBSERVER_OPTIONS.iter().find(is_named) else {
            return word.to_vec();
        };
        has_one = true;
        [*prefix, instead].concat()
    });
    let words = words.collect::<Vec<_>>().join(&b' ');
    has_one.then(|| OsString::from_vec(words))
}

/// The words without the jobserver.
pub fn without(flags: &OsStr) -> OsString {
    let words = flags.as_bytes().split(|byte| *byte == b' ');
    let stay = words.filter(|word| !JOBSERVER_OPTIONS.iter().any(|it| word.starts_with(it)));
    OsString::from_vec(stay.collect::<Vec<_>>().join(&b' '))
}

/// Number of jobs at the same time, as the make of the command may have.
fn at_once(command: &Command) -> usize {
    let flags = command.environment.get(JOBSERVER_VARIABLES[0]);
    let words = flags
        .into_iter()
        .flat_map(|flags| flags.as_bytes().split(|byte| *byte == b' '))
        // Variables follow.
        .take_while(|word| *word != b"--");
    let said = words.filter_map(|word| {
        let number = word.strip_prefix(b"-j")?;
        std::str::from_utf8(number).ok()?.parse().ok()
    });
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    said.last().unwrap_or_else(processors)
}

#[cfg(test)]
mod tests {
    use rustix::io::fcntl_setfd;

    use super::*;

    #[test]
    fn open_advertised_jobserver_is_found() {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let ends = [&from, &to].map(|end| end.as_raw_fd());
        let [first, second] = ends;
        let flags = |words: String| advertised(Some(OsStr::new(&words)));
        let said = format!(" -j4 --jobserver-auth={first},{second}");
        assert_eq!(flags(said.clone()), None, "who is begun has neither");
        for end in [&from, &to] {
            fcntl_setfd(end, FdFlags::empty()).expect("it is open");
        }
        assert_eq!(flags(said), Some(ends));
        let (from, to) = (first, second);
        assert_eq!(
            flags(format!("k -j4 --jobserver-fds={from},{to}")),
            Some([from, to])
        );
        assert_eq!(flags(format!(" -j4 --jobserver-auth={from},9999")), None);
        assert_eq!(flags(" -j --jobserver-auth=fifo:/tmp/x".into()), None);
        assert_eq!(flags(" -j4".into()), None);
        assert_eq!(advertised(None), None);
    }

    #[test]
    fn fifo_jobserver_becomes_descriptors() {
        let renamed = |flags: &str| renamed(OsStr::new(flags), b"14,15");
        let named = "w -j4 --jobserver-auth=fifo:/tmp/GMfifo12 -- A=b";
        assert_eq!(
            renamed(named),
            Some("w -j4 --jobserver-auth=14,15 -- A=b".into())
        );
        for other in ["", "w -j4 --jobserver-auth=3,4", "-- A=fifo:/tmp/x"] {
            assert_eq!(renamed(other), None);
        }
    }

    #[test]
    fn jobserver_option_is_removed() {
        let flags = OsStr::new("w -j4 --jobserver-auth=3,4 -- A=b");
        assert_eq!(without(flags), "w -j4 -- A=b");
        assert_eq!(without(OsStr::new("w -- A=b")), "w -- A=b");
    }
}
