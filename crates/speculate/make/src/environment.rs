//! Variables that a program is given, in their order: a recipe may print them.

use std::{
    ffi::{CString, OsStr, OsString, c_char},
    io,
    os::unix::ffi::OsStrExt as _,
    ptr,
};

use nix::unistd::execvpe;
use serde::{Deserialize, Serialize};

/// Names and values, as a program finds them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// That of this process.
    #[must_use]
    pub fn own() -> Self {
        std::env::vars_os().collect()
    }

    /// The value of that one.
    #[must_use]
    pub fn get(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        let found = self.0.iter().find(|(its, _)| its == name.as_ref());
        found.map(|(_, value)| value.as_os_str())
    }

    /// Gives it that value, where it is; behind all others, if it is not there.
    pub fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(its, _)| *its == name) {
            Some((_, its)) => *its = value,
            None => self.0.push((name, value)),
        }
    }

    /// Takes it away.
    pub fn remove(&mut self, name: impl AsRef<OsStr>) {
        self.0.retain(|(its, _)| its != name.as_ref());
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// As execve(2) takes them.
    ///
    /// # Errors
    /// A name or a value has a zero in it.
    pub fn words(&self) -> io::Result<Vec<CString>> {
        let word = |(name, value): (&OsStr, &OsStr)| {
            Ok(CString::new(
                [name.as_bytes(), b"=", value.as_bytes()].concat(),
            )?)
        };
        self.iter().map(word).collect()
    }
}

/// The same for a process that is about to be another program, between fork and exec, where nothing may be allocated. (What
/// [`std::process::Command`] is told of an environment it sorts.)
#[derive(Debug)]
pub(crate) struct Pointers {
    _words: Vec<CString>,
    /// To each of them, and null.
    all: Vec<*const c_char>,
}

// SAFETY: they lead to words that are its own, which nobody changes and no other thread is given.
unsafe impl Send for Pointers {}
// SAFETY: as above.
unsafe impl Sync for Pointers {}

impl Pointers {
    /// To those.
    ///
    /// # Errors
    /// Those of [`Environment::words`].
    pub(crate) fn to(environment: &Environment) -> io::Result<Self> {
        let words = environment.words()?;
        let all = words.iter().map(|word| word.as_ptr());
        let all = all.chain([ptr::null()]).collect();
        Ok(Self { _words: words, all })
    }

    /// This process has them from now on: it is to be one that becomes a program, and does nothing else that asks for a variable.
    pub(crate) fn give(&self) {
        unsafe extern "C" {
            static mut environ: *const *const c_char;
        }
        // SAFETY: a process between fork and exec has one thread, and the list lives until it is that program.
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

/// Is that program from now on, which is called as the first of its arguments says. Returns if it cannot be.
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
