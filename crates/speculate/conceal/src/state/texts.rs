//! Scripts and makefiles that a command has read: the variables named there may matter to the command.

use std::{
    collections::BTreeSet,
    os::fd::{AsFd as _, OwnedFd},
};

use encapsulation::TreePath;

use super::State;
use crate::concealment::Concealment;

/// The first bytes of a script.
const SCRIPT_MAGIC: &[u8] = b"#!";
/// Part of the usual names of makefiles.
const MAKEFILE_STEM: &str = "akefile";
/// Extensions of makefiles.
const MAKEFILE_EXTENSIONS: [&str; 3] = ["mk", "mak", "make"];
/// Longer texts are not read.
const LONGEST_TEXT_BYTES: usize = 4 << 20;

/// Paths of the texts.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    /// Each file counts as a text.
    is_each: bool,
    paths: BTreeSet<TreePath>,
}

impl Texts {
    /// Notes a file that was opened for reading.
    pub(super) fn note(&mut self, path: &TreePath, file: &OwnedFd) {
        if (self.is_each || is_makefile(path) || is_script(file)) && !self.paths.contains(path) {
            self.paths.insert(path.clone());
        }
    }
}

fn is_makefile(path: &TreePath) -> bool {
    let name = path.as_path().file_name().and_then(|name| name.to_str());
    let extension = path.as_path().extension().and_then(|it| it.to_str());
    name.is_some_and(|name| name.contains(MAKEFILE_STEM))
        || extension.is_some_and(|extension| MAKEFILE_EXTENSIONS.contains(&extension))
}

fn is_script(file: &OwnedFd) -> bool {
    let mut begin = [0; SCRIPT_MAGIC.len()];
    let read = rustix::io::pread(file.as_fd(), &mut begin, 0);
    read == Ok(begin.len()) && begin == SCRIPT_MAGIC
}

fn text(file: &OwnedFd) -> Option<Vec<u8>> {
    let mut all = vec![0; LONGEST_TEXT_BYTES];
    let mut length = 0;
    while length < LONGEST_TEXT_BYTES {
        match rustix::io::pread(file, &mut all[length..], length as u64).ok()? {
            0 => {
                all.truncate(length);
                return Some(all);
            }
            more => length += more,
        }
    }
    None
}

impl State {
    fn texts(&mut self) -> Vec<Option<Vec<u8>>> {
        let paths: Vec<_> = self.texts.paths.iter().cloned().collect();
        let read = |path| self.tree.read(path).ok().and_then(|file| text(&file));
        paths.iter().map(read).collect()
    }
}

impl Concealment {
    /// The reader is a make: each file counts as a text from now on.
    pub fn note_texts(&self) {
        self.state().texts.is_each = true;
    }

    /// The texts; `None` for a text that cannot be read any more or is too long.
    #[must_use]
    pub fn texts(&self) -> Vec<Option<Vec<u8>>> {
        self.state().texts()
    }
}
