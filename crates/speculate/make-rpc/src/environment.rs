//! The environment of a program, in order: a recipe may print the variables.

use std::{
    ffi::{CString, OsStr, OsString, c_char},
    io,
    os::unix::ffi::OsStrExt as _,
    ptr,
};

use nix::unistd::execvpe;
use serde::{Deserialize, Serialize};

/// Names and values in the order of `environ`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// The environment of this process.
    #[must_use]
    pub fn own() -> Self {
        std::env::vars_os().collect()
    }

    /// The value of a variable.
    #[must_use]
    pub fn get(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        let found = self.0.iter().find(|(its, _)| its == name.as_ref());
        found.map(|(_, value)| value.as_os_str())
    }

    /// Sets a variable at the present place, or behind all others.
    pub fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(its, _)| *its == name) {
            Some((_, its)) => *its = value,
            None => self.0.push((name, value)),
        }
    }

    /// Removes a variable.
    pub fn remove(&mut self, name: impl AsRef<OsStr>) {
        self.0.retain(|(its, _)| its != name.as_ref());
    }

    /// All names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// `NAME=value` as execve(2) needs the words.
    ///
    /// # Errors
    /// A name or a value has a zero byte.
    pub fn words(&self) -> io::Result<Vec<CString>> {
        let word = |(name, value): (&OsStr, &OsStr)| {
            Ok(CString::new(
                [name.as_bytes(), b"=", value.as_bytes()].concat(),
            )?)
        };
        self.iter().map(word).collect()
    }
}

/// An environment for a process between fork and exec, where no memory may be allocated.
/// ([`std::process::Command`] sorts an environment.)
#[derive(Debug)]
pub struct Pointers {
    _words: Vec<CString>,
    /// A pointer to each word, and null.
    all: Vec<*const c_char>,
}

// SAFETY: the pointers lead to words of the same structure, which no code changes and no other thread has.
unsafe impl Send for Pointers {}
// SAFETY: as above.
unsafe impl Sync for Pointers {}

impl Pointers {
    /// The pointers to the words of an environment.
    ///
    /// # Errors
    /// The errors of [`Environment::words`].
    pub fn to(environment: &Environment) -> io::Result<Self> {
        let words = environment.words()?;
        let all = words.iter().map(|word| word.as_ptr());
        let all = all.chain([ptr::null()]).collect();
        Ok(Self { _words: words, all })
    }

    /// Makes this the environment of the process, which is about to execute a program and reads no variable any more.
    pub fn give(&self) {
        unsafe extern "C" {
            static mut environ: *const *const c_char;
        }
        // SAFETY: a process between fork and exec has one thread, and the list lives until the exec.
        unsafe { environ = self.all.as_ptr() };
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(all: T) -> Self {
        let all = all.into_iter();
        Self(
            all.map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

/// Executes the program, under the name of the first argument. Returns the error if the exec fails.
#[must_use]
pub fn become_it(program: &OsStr, arguments: &[OsString], environment: &Environment) -> io::Error {
    let word = |word: &OsStr| CString::new(word.as_bytes());
    let arguments = arguments.iter().map(|argument| word(argument));
    let words = || -> io::Result<_> {
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        Ok((word(program)?, arguments, environment.words()?))
    };
    match words() {
        Ok((program, arguments, environment)) => {
            let Err(errno) = execvpe(&program, &arguments, &environment);
            errno.into()
        }
        Err(error) => error,
    }
}
