//! Scripts and makefiles that were read: what they name is what may matter to those who read them.

use std::{
    collections::BTreeSet,
    os::fd::{AsFd as _, OwnedFd},
};

use encapsulation::TreePath;

use super::State;
use crate::concealing::Concealing;

/// How scripts begin.
const SCRIPT: &[u8] = b"#!";
/// What makefiles are called, but for what is before and behind it; and what follows a dot.
const MAKEFILE: &str = "akefile";
const PARTS: [&str; 3] = ["mk", "mak", "make"];
/// More is not looked at.
const MOST: usize = 4 << 20;

/// Where they are.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    /// Whatever was read is one.
    is_each: bool,
    paths: BTreeSet<TreePath>,
}

impl Texts {
    /// That file was opened to read it.
    pub(super) fn note(&mut self, path: &TreePath, file: &OwnedFd) {
        if (self.is_each || is_makefile(path) || is_script(file)) && !self.paths.contains(path) {
            self.paths.insert(path.clone());
        }
    }
}

fn is_makefile(path: &TreePath) -> bool {
    let name = path.as_path().file_name().and_then(|name| name.to_str());
    let extension = path.as_path().extension().and_then(|it| it.to_str());
    name.is_some_and(|name| name.contains(MAKEFILE))
        || extension.is_some_and(|extension| PARTS.contains(&extension))
}

fn is_script(file: &OwnedFd) -> bool {
    let mut begin = [0; SCRIPT.len()];
    let read = rustix::io::pread(file.as_fd(), &mut begin, 0);
    read == Ok(begin.len()) && begin == SCRIPT
}

fn text(file: &OwnedFd) -> Option<Vec<u8>> {
    let mut all = vec![0; MOST];
    let mut length = 0;
    while length < MOST {
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

impl Concealing {
    /// Each file that is read is a text from now on: it is a make that reads.
    pub fn note_texts(&self) {
        self.state().texts.is_each = true;
    }

    /// Scripts and makefiles that were read; `None` of one that cannot be read any more, or is very long.
    #[must_use]
    pub fn texts(&self) -> Vec<Option<Vec<u8>>> {
        self.state().texts()
    }
}
