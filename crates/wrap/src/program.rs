//! Can a program take the preloaded library? Said from its file, before it runs.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use object::{
    Architecture, Endianness, Object as _,
    elf::{FileHeader64, PT_INTERP},
    read::elf::{ElfFile, ProgramHeader as _},
};

/// Interpreters that name interpreters: nobody writes more.
const MOST_SCRIPTS: usize = 4;
/// Set-user-id and set-group-id.
const CHANGES_IDENTITY: u32 = 0o6000;

/// Why not.
#[derive(Debug, thiserror::Error)]
pub enum NotWrappable {
    /// Its file cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The program.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no program that this machine runs by itself.
    #[error("{0} is neither an ELF program of this machine nor a script")]
    Foreign(PathBuf),
    /// It is for another kind of processor than the library.
    #[error("{0} is not for x86-64, which is what can be recorded so far")]
    OtherProcessor(PathBuf),
    /// It has no loader that could load the library.
    #[error("{0} is statically linked: no library can be preloaded into it")]
    Static(PathBuf),
    /// The loader does not preload into what runs with another's rights.
    #[error("{0} is set-user-id or set-group-id: no library can be preloaded into it")]
    ChangesIdentity(PathBuf),
}

/// Can the library be preloaded into this program, or the interpreter of this script?
///
/// # Errors
/// Why not.
pub fn check(path: &Path) -> Result<(), NotWrappable> {
    let mut path = path.to_owned();
    for _ in 0..MOST_SCRIPTS {
        let unreadable = |source| NotWrappable::Unreadable {
            path: path.clone(),
            source,
        };
        if fs::metadata(&path).map_err(unreadable)?.mode() & CHANGES_IDENTITY != 0 {
            return Err(NotWrappable::ChangesIdentity(path));
        }
        let bytes = fs::read(&path).map_err(unreadable)?;
        match interpreter(&bytes) {
            Some(interpreter) => path = interpreter,
            None => return check_elf(path, &bytes),
        }
    }
    Err(NotWrappable::Foreign(path))
}

/// What a script wants to be run by (`#!`).
fn interpreter(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let words = String::from_utf8_lossy(line);
    let mut words = words.split_ascii_whitespace();
    let program = PathBuf::from(words.next()?);
    let is_env = program.file_name().is_some_and(|name| name == "env");
    let named = words.find(|word| !word.starts_with('-')).filter(|_| is_env);
    let found = named.and_then(|name| {
        let path = std::env::var_os("PATH")?;
        let mut all = std::env::split_paths(&path).map(|directory| directory.join(name));
        all.find(|candidate| candidate.is_file())
    });
    Some(found.unwrap_or(program))
}

fn check_elf(path: PathBuf, bytes: &[u8]) -> Result<(), NotWrappable> {
    let Ok(file) = ElfFile::<FileHeader64<Endianness>>::parse(bytes) else {
        return Err(NotWrappable::Foreign(path));
    };
    if file.architecture() != Architecture::X86_64 {
        return Err(NotWrappable::OtherProcessor(path));
    }
    let endian = file.endian();
    let mut headers = file.elf_program_headers().iter();
    if headers.any(|header| header.p_type(endian) == PT_INTERP) {
        Ok(())
    } else {
        Err(NotWrappable::Static(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_a_loader_can_and_scripts_as_their_interpreters() {
        let shell = fs::canonicalize("/bin/sh").expect("a shell");
        check(&shell).expect("it has a loader");
        let directory = tempfile::tempdir().expect("a directory");
        let script = directory.path().join("script");
        for line in [
            "#!/bin/sh -e\ntrue\n",
            "#!/usr/bin/env -S sh\n",
            "#! /usr/bin/env sh",
        ] {
            fs::write(&script, line).expect("written");
            check(&script).expect(line);
        }
        fs::write(&script, format!("#!{}\n", script.display())).expect("written");
        assert!(matches!(check(&script), Err(NotWrappable::Foreign(_))));
    }

    #[test]
    fn others_cannot() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        assert!(matches!(check(&file), Err(NotWrappable::Unreadable { .. })));
        fs::write(&file, "no program").expect("written");
        assert!(matches!(check(&file), Err(NotWrappable::Foreign(_))));
        let shell = fs::canonicalize("/bin/sh").expect("a shell");
        let mut bytes = fs::read(shell).expect("a program");
        bytes[18] = 0xb7; // e_machine: aarch64
        fs::write(&file, &bytes).expect("written");
        assert!(matches!(check(&file), Err(NotWrappable::OtherProcessor(_))));
    }
}
