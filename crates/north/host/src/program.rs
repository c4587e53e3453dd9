//! Whether a program can take the preloaded library. The answer comes from the program's file, before the program
//! runs.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use object::{
    LittleEndian,
    elf::{EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, PT_INTERP},
    read::elf::{FileHeader as _, ProgramHeader as _},
};

/// Longest chain of interpreters that name interpreters. No real script has more.
const MOST_SCRIPTS: usize = 4;
/// Bytes of a script's first line that the kernel reads.
const LONGEST_LINE: usize = 256;
/// Set-user-id and set-group-id.
const CHANGES_IDENTITY: u32 = 0o6000;

/// Reasons against preloading.
#[derive(Debug, thiserror::Error)]
pub enum NotWrappable {
    /// The file of the program cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The program.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is no program for this machine.
    #[error("{0} is neither an ELF program of this machine nor a script")]
    Foreign(PathBuf),
    /// The program is for another processor than the library.
    #[error("{0} is not an x86-64 program, and only these can be recorded so far")]
    OtherProcessor(PathBuf),
    /// The program has no loader, and only a loader can preload.
    #[error("{0} is statically linked: no library can be preloaded")]
    Static(PathBuf),
    /// The loader does not preload into a program with the rights of another user.
    #[error("{0} is set-user-id or set-group-id: no library can be preloaded")]
    ChangesIdentity(PathBuf),
}

/// Checks that the library can be preloaded into this program, or into the interpreter of this script.
///
/// # Errors
/// The reason against preloading.
pub fn check(path: &Path) -> Result<(), NotWrappable> {
    let mut path = path.to_owned();
    for _ in 0..MOST_SCRIPTS {
        let bytes = read(&path)?;
        match interpreter(&bytes) {
            Some(interpreter) => path = interpreter.program(),
            None => return check_elf(&bytes).map_err(|obstacle| obstacle(path)),
        }
    }
    Err(NotWrappable::Foreign(path))
}

/// The interpreter of a script; `None`: the file is no script.
#[must_use]
pub fn script_of(path: &Path) -> Option<PathBuf> {
    interpreter(&read(path).ok()?).map(|interpreter| interpreter.program())
}

/// The content of a program's file. A pipe is refused: reading would wait for a writer.
fn read(path: &Path) -> Result<Vec<u8>, NotWrappable> {
    let unreadable = |source| NotWrappable::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let mut file: File = options.open(path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    if !about.is_file() {
        return Err(NotWrappable::Foreign(path.to_owned()));
    }
    if about.mode() & CHANGES_IDENTITY != 0 {
        return Err(NotWrappable::ChangesIdentity(path.to_owned()));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// The interpreter that a script names.
#[derive(Debug, PartialEq, Eq)]
struct Interpreter<'a> {
    path: &'a [u8],
    /// The arguments after the path.
    words: &'a [u8],
}

/// The line that begins with `#!`, as the kernel reads the line: blanks are spaces and tabs, and a path that is cut off
/// is ignored.
fn interpreter(bytes: &[u8]) -> Option<Interpreter<'_>> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let seen = &bytes[..bytes.len().min(LONGEST_LINE)];
    let behind = seen.strip_prefix(b"#!")?;
    let end = behind.iter().position(|byte| matches!(byte, b'\n' | 0));
    let line = &behind[..end.unwrap_or(behind.len())];
    let begin = line.iter().position(|byte| !is_blank(byte))?;
    let line = &line[begin..];
    let length = line.iter().position(is_blank);
    let is_cut = length.is_none() && end.is_none() && bytes.len() >= LONGEST_LINE;
    let (path, words) = line.split_at(length.unwrap_or(line.len()));
    (!is_cut).then_some(Interpreter { path, words })
}

impl Interpreter<'_> {
    /// The interpreter; for `env`, the program that `env` finds.
    fn program(&self) -> PathBuf {
        let program = PathBuf::from(OsStr::from_bytes(self.path));
        if program.file_name().is_none_or(|name| name != "env") {
            return program;
        }
        let mut words = self.words.split(u8::is_ascii_whitespace);
        let name = words.find(|word| !word.is_empty() && !word.starts_with(b"-"));
        let found = name.and_then(|name| {
            let path = std::env::var_os("PATH")?;
            let name = OsStr::from_bytes(name);
            let mut all = std::env::split_paths(&path).map(|directory| directory.join(name));
            all.find(|candidate| candidate.is_file())
        });
        found.unwrap_or(program)
    }
}

/// Checks the headers as the kernel and the loader do, which ignore sections and symbols. Numbers are little-endian on
/// this machine, in every file.
fn check_elf(bytes: &[u8]) -> Result<(), fn(PathBuf) -> NotWrappable> {
    let foreign = |_| NotWrappable::Foreign as fn(PathBuf) -> NotWrappable;
    let header = FileHeader64::<LittleEndian>::parse(bytes).map_err(foreign)?;
    let endian = header.endian().map_err(foreign)?;
    if ![ET_EXEC, ET_DYN].contains(&header.e_type(endian)) {
        return Err(NotWrappable::Foreign);
    }
    if header.e_machine(endian) != EM_X86_64 {
        return Err(NotWrappable::OtherProcessor);
    }
    let mut headers = header
        .program_headers(endian, bytes)
        .map_err(foreign)?
        .iter();
    match headers.any(|header| header.p_type(endian) == PT_INTERP) {
        true => Ok(()),
        false => Err(NotWrappable::Static),
    }
}

/// Properties that hold for every byte string; each function panics if the property does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties {
    use super::{LONGEST_LINE, check_elf, interpreter};

    /// Reads any bytes as the file of a program. A script's interpreter stands in the first line, where the kernel
    /// looks. A program that can take the library is little-endian, for this machine, and names a loader.
    ///
    /// # Panics
    ///
    /// If the property does not hold.
    pub fn program(bytes: &[u8]) {
        if let Some(interpreter) = interpreter(bytes) {
            let seen = &bytes[2..bytes.len().min(LONGEST_LINE)];
            let line = seen.split(|byte| matches!(byte, b'\n' | 0)).next();
            let line = line.unwrap_or_default();
            let said = [interpreter.path, interpreter.words].concat();
            assert!(line.ends_with(&said) && !interpreter.path.is_empty());
            assert!(
                !interpreter
                    .path
                    .iter()
                    .any(|byte| matches!(byte, b' ' | b'\t' | b'\n' | 0))
            );
            let blanks = &line[..line.len() - said.len()];
            assert!(blanks.iter().all(|byte| matches!(byte, b' ' | b'\t')));
            assert!(check_elf(bytes).is_err(), "it is a script");
            return;
        }
        // The allocator aligns the bytes, as the parser needs for numbers.
        let bytes = bytes.to_vec();
        let loader = names_loader(&bytes);
        assert_eq!(
            check_elf(&bytes).is_ok(),
            loader == Some(true),
            "{loader:?}"
        );
    }

    fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
        let bytes: &[u8; N] = bytes.get(at..)?.first_chunk()?;
        Some(
            bytes
                .iter()
                .rfold(0, |all, byte| all << 8 | u64::from(*byte)),
        )
    }

    /// The fields of the headers at the places that elf(5) gives; `None` for a file that is not a program for this
    /// machine.
    fn names_loader(bytes: &[u8]) -> Option<bool> {
        let [class, data, version] = [2, 1, 1];
        let is_program = bytes.starts_with(&[0x7f, b'E', b'L', b'F', class, data, version]);
        let [kind, machine] = [number::<2>(bytes, 16)?, number::<2>(bytes, 18)?];
        let (begin, size) = (number::<8>(bytes, 32)?, number::<2>(bytes, 54)?);
        let count = number::<2>(bytes, 56)?;
        if bytes.len() < 64 || !is_program || ![2, 3].contains(&kind) || machine != 62 {
            return None;
        }
        // A file with more than 65,534 headers stores the count elsewhere: no program has that many.
        if begin == 0 || count == 0 || count == 0xffff {
            return Some(false);
        }
        let whole = size.checked_mul(count)?.checked_add(begin)?;
        if size != 56 || begin % 8 != 0 || whole > bytes.len() as u64 {
            return None;
        }
        let at = |entry: u64| usize::try_from(begin + entry * size).ok();
        let mut kinds = (0..count).map(|entry| number::<4>(bytes, at(entry)?));
        Some(kinds.any(|kind| kind == Some(3)))
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::CString, fs};

    use super::*;

    #[test]
    fn dynamic_program_and_script_are_wrappable() {
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
    fn absent_and_foreign_files_are_refused() {
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

    #[test]
    fn pipe_and_device_are_refused_without_wait() {
        let directory = tempfile::tempdir().expect("a directory");
        let (pipe, script) = (
            directory.path().join("pipe"),
            directory.path().join("script"),
        );
        let name = CString::new(pipe.as_os_str().as_bytes()).expect("a name");
        // SAFETY: the name ends with a zero and lives longer than the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o700) }, 0);
        for path in [&pipe, Path::new("/dev/zero")] {
            assert!(matches!(check(path), Err(NotWrappable::Foreign(_))));
            fs::write(&script, format!("#!{}\n", path.display())).expect("written");
            assert!(matches!(check(&script), Err(NotWrappable::Foreign(of)) if of == path));
        }
    }

    #[test]
    fn foreign_elf_is_refused() {
        let shell = fs::canonicalize("/bin/sh").expect("a shell");
        let shell = fs::read(shell).expect("a program");
        let changed = |places: &[(usize, u8)]| {
            let mut bytes = shell.clone();
            for (at, to) in places {
                bytes[*at] = *to;
            }
            check_elf(&bytes).map_err(|obstacle| obstacle(PathBuf::new()))
        };
        changed(&[]).expect("it has a loader");
        let endless = changed(&[(40, 0xff), (41, 0xff), (42, 0xff), (43, 0xff)]);
        endless.expect("nobody reads its sections");
        // A program for a big-endian machine.
        let big = changed(&[(5, 2), (16, 0), (17, 3), (18, 0), (19, 62)]);
        assert!(matches!(big, Err(NotWrappable::Foreign(_))));
        for kind in [1, 4] {
            // An object file, or a core dump.
            let other = changed(&[(16, kind)]);
            assert!(matches!(other, Err(NotWrappable::Foreign(_))));
        }
    }

    #[test]
    fn script_line_is_parsed_as_by_kernel() {
        let path = |text: &[u8]| interpreter(text).map(|found| found.path.to_vec());
        // The kernel appends a NUL to a shorter file.
        let line = |length| [&b"#!/"[..], &vec![b'a'; length - 3]].concat();
        let (long, longest) = (line(LONGEST_LINE), line(LONGEST_LINE - 1));
        for (text, expected) in [
            (&b"#!/bin/sh\n"[..], Some(&b"/bin/sh"[..])),
            (b"#! \t/bin/sh -e\n", Some(b"/bin/sh")),
            (b"#!/bin/sh\r\n", Some(b"/bin/sh\r")),
            (b"#!/bin/\xff\n", Some(b"/bin/\xff")),
            (b"#!/bin/sh", Some(b"/bin/sh")),
            (b"#!/bin/sh\0-e\n", Some(b"/bin/sh")),
            (b"#! \n/bin/sh\n", None),
            (&long, None),
            (&longest, Some(&longest[2..])),
        ] {
            assert_eq!(path(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn fuzz_seeds_pass() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds/program");
        for seed in fs::read_dir(seeds).expect("seeds") {
            properties::program(&fs::read(seed.expect("a seed").path()).expect("a seed"));
        }
    }
}
