//! A side of the comparison: the answers of calls in a directory, and the files of the directory.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, RenameFlags, linkat, mknodat, renameat_with},
    io::Errno,
};

use crate::acts::{Act, SLOT_COUNT};

/// truncate(2): without an open.
pub(crate) fn cut(path: &Path, size: u64) -> Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
    // SAFETY: the path ends with a zero, and lives as long as the call.
    match unsafe { libc::truncate(path.as_ptr(), size.cast_signed()) } {
        0 => Ok(()),
        _ => Err(errno(std::io::Error::last_os_error())),
    }
}

/// A directory of the comparison.
pub(crate) struct Side {
    pub(crate) at: PathBuf,
    pub(crate) open: [Option<File>; SLOT_COUNT],
    /// Opened for reading before a write: such a descriptor reads the old content, as with overlayfs (`docs/make.md`).
    pub(crate) is_old: [bool; SLOT_COUNT],
    pub(crate) reads: [bool; SLOT_COUNT],
}

pub(crate) fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Side {
    pub(crate) fn new(at: &Path) -> Self {
        let at = at.to_owned();
        let open = [const { None }; SLOT_COUNT];
        Self {
            at,
            open,
            is_old: [false; SLOT_COUNT],
            reads: [false; SLOT_COUNT],
        }
    }

    fn is_file(&self, path: &Path) -> Result<(), Errno> {
        let there = fs::symlink_metadata(self.at.join(path)).map_err(errno)?;
        if there.is_file() {
            Ok(())
        } else {
            Err(Errno::INVAL)
        }
    }

    /// Performs the act and returns the answer.
    pub(crate) fn act(&mut self, act: &Act, number: usize) -> Result<Vec<u8>, Errno> {
        let at = self.at.clone();
        let real = |path: &Path| at.join(path);
        let words = format!("<{number}>");
        let done = |()| Vec::new();
        if matches!(
            act,
            Act::Write(_)
                | Act::Append(_)
                | Act::Truncate(..)
                | Act::Cut(..)
                | Act::WriteOpen(..)
                | Act::CutOpen(..)
        ) {
            self.is_old = self.reads;
        }
        match act {
            Act::Create(path, mode) => {
                let new = File::options()
                    .write(true)
                    .create_new(true)
                    .mode(*mode)
                    .open(real(path));
                new.and_then(|mut new| new.write_all(words.as_bytes()))
                    .map(done)
                    .map_err(errno)
            }
            Act::Write(path) => {
                self.is_file(path)?;
                fs::write(real(path), words).map(done).map_err(errno)
            }
            Act::Append(path) => {
                self.is_file(path)?;
                let file = File::options().append(true).open(real(path));
                file.and_then(|mut file| file.write_all(words.as_bytes()))
                    .map(done)
                    .map_err(errno)
            }
            Act::Truncate(path, size) => {
                self.is_file(path)?;
                let file = File::options().write(true).open(real(path));
                file.and_then(|file| file.set_len(*size))
                    .map(done)
                    .map_err(errno)
            }
            Act::Cut(path, size) => cut(&real(path), *size).map(done),
            Act::Open(slot, path, write) => {
                self.is_file(path)?;
                let file = File::options().read(true).write(*write).open(real(path));
                self.open[*slot] = Some(file.map_err(errno)?);
                (self.reads[*slot], self.is_old[*slot]) = (!*write, false);
                Ok(Vec::new())
            }
            Act::WriteOpen(slot, at) => match &self.open[*slot] {
                Some(file) => file
                    .write_all_at(words.as_bytes(), *at)
                    .map(done)
                    .map_err(errno),
                None => Ok(Vec::new()),
            },
            Act::ReadOpen(slot) if self.is_old[*slot] => Ok(Vec::new()),
            Act::ReadOpen(slot) => match &mut self.open[*slot] {
                Some(file) => {
                    let mut content = Vec::new();
                    file.seek(SeekFrom::Start(0)).map_err(errno)?;
                    file.read_to_end(&mut content).map_err(errno)?;
                    let length = file.metadata().map_err(errno)?.len();
                    content.extend(length.to_be_bytes());
                    Ok(content)
                }
                None => Ok(Vec::new()),
            },
            Act::CutOpen(slot, size) => match &self.open[*slot] {
                Some(file) => file.set_len(*size).map(done).map_err(errno),
                None => Ok(Vec::new()),
            },
            Act::ModeOpen(slot, mode) => match &self.open[*slot] {
                Some(file) => {
                    let mode = fs::Permissions::from_mode(*mode);
                    file.set_permissions(mode).map_err(errno)?;
                    let mode = file.metadata().map_err(errno)?.mode();
                    Ok(mode.to_be_bytes().to_vec())
                }
                None => Ok(Vec::new()),
            },
            Act::Close(slot) => {
                self.open[*slot] = None;
                Ok(Vec::new())
            }
            Act::Directory(path) => {
                rustix::fs::mkdir(real(path), Mode::from_bits_truncate(0o755)).map(done)
            }
            Act::Symlink(target, path) => rustix::fs::symlink(target, real(path)).map(done),
            Act::Fifo(path) => {
                let mode = Mode::from_bits_truncate(0o644);
                mknodat(CWD, real(path), FileType::Fifo, mode, 0).map(done)
            }
            Act::Link(from, to) => {
                linkat(CWD, real(from), CWD, real(to), AtFlags::empty()).map(done)
            }
            Act::Rename(from, to, flags) => {
                let flags = RenameFlags::from_bits_retain(*flags);
                renameat_with(CWD, real(from), CWD, real(to), flags).map(done)
            }
            Act::Unlink(path) => rustix::fs::unlink(real(path)).map(done),
            Act::RemoveDirectory(path) => rustix::fs::rmdir(real(path)).map(done),
            Act::Mode(path, mode) => {
                let there = fs::symlink_metadata(real(path)).map_err(errno)?;
                if there.is_symlink() {
                    return Ok(Vec::new());
                }
                let mode = fs::Permissions::from_mode(*mode);
                fs::set_permissions(real(path), mode)
                    .map(done)
                    .map_err(errno)
            }
            Act::Times(path, seconds) => {
                let at = rustix::fs::Timespec {
                    tv_sec: *seconds,
                    tv_nsec: 7,
                };
                let times = rustix::fs::Timestamps {
                    last_access: at,
                    last_modification: at,
                };
                let follow = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(CWD, real(path), &times, follow).map(done)
            }
            // Through symbolic links, to any target.
            Act::Through(path) => {
                let there = fs::metadata(real(path)).map_err(errno)?;
                Ok(if there.is_file() {
                    fs::read(real(path)).map_err(errno)?
                } else {
                    vec![]
                })
            }
            Act::Commit => Ok(Vec::new()),
            Act::Then(one, other) => {
                let one = self.act(one, number);
                one.and(self.act(other, number))
            }
        }
    }

    /// All that is there, by the kernel.
    pub(crate) fn picture(&self) -> Picture {
        let mut picture = Picture::new();
        draw(&self.at, Path::new(""), &mut picture);
        picture
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    mode: u32,
    links: u64,
    content: Vec<u8>,
    set_time: Option<i64>,
}

pub(crate) type Picture = BTreeMap<PathBuf, Seen>;

pub(crate) fn draw(at: &Path, below: &Path, picture: &mut Picture) {
    for entry in fs::read_dir(at.join(below)).expect("a directory") {
        let entry = entry.expect("an entry");
        let path = below.join(entry.file_name());
        let there = fs::symlink_metadata(entry.path()).expect("it is there");
        assert_eq!(
            there.file_type(),
            entry.file_type().expect("its kind"),
            "{path:?}"
        );
        let content = match there.file_type() {
            kind if kind.is_file() => fs::read(entry.path()).expect("a file"),
            kind if kind.is_symlink() => fs::read_link(entry.path())
                .expect("a link")
                .into_os_string()
                .into_encoded_bytes(),
            _ => Vec::new(),
        };
        let directory = there.is_dir();
        let seen = Seen {
            mode: there.mode(),
            links: if directory { 0 } else { there.nlink() },
            content,
            // A time that was not set is the time of the moment.
            set_time: (there.mtime() < 1000).then(|| there.mtime()),
        };
        picture.insert(path.clone(), seen);
        if directory {
            draw(at, &path, picture);
        }
    }
}
