//! Names that are made, changed and removed.
//!
//! The outcome is recorded, and a replay does not repeat the call. An intent is recorded before the call: if the
//! record ends in between, the names show whether the call was made.

use core::{ffi::CStr, mem::MaybeUninit};

use libc::{
    AT_FDCWD, AT_REMOVEDIR, AT_SYMLINK_NOFOLLOW, S_IFMT, S_IFSOCK, c_char, c_int, c_uint, mode_t,
    off_t, stat,
};
use north_abi::{Call, Record};

use super::{
    files::fd_of,
    opening::{identity, named, same},
};
use crate::{
    descriptors::{Backing, Kind},
    errno::answer_int,
    inodes::Inodes,
    live,
    shared_state_guard::refuse_helper_in_shadow_replay,
    sys::{Outcome, sys},
    wrap::{Wrap, with},
};

/// Files that a replay has recreated, with names. Changes of these names are repeated.
pub(crate) type Remade = Inodes<256>;

/// The file that had a name before something was done to that; 0: none.
#[derive(Clone, Copy)]
pub(super) struct Made(u64);

impl Made {
    pub(super) fn inode(directory: c_int, path: &CStr) -> Self {
        Self(about(directory, path).map_or(0, |about| about.st_ino))
    }

    /// Whether the name is a socket.
    pub(super) fn is_socket(directory: c_int, path: &CStr) -> bool {
        about(directory, path).is_some_and(|about| about.st_mode & S_IFMT == S_IFSOCK)
    }

    pub(super) fn number(self) -> u64 {
        self.0
    }

    pub(super) fn did_not_exist(self) -> bool {
        self.0 == 0
    }
}

fn about(directory: c_int, path: &CStr) -> Option<stat> {
    let mut about = MaybeUninit::<stat>::uninit();
    // SAFETY: a string, and memory on our stack that is read only after success.
    unsafe {
        let to = about.as_mut_ptr();
        match sys!(
            SYS_newfstatat,
            directory,
            path.as_ptr(),
            to,
            AT_SYMLINK_NOFOLLOW
        ) {
            0 => Some(about.assume_init()),
            _ => None,
        }
    }
}

/// A name.
#[derive(Clone, Copy)]
struct Name<'a> {
    directory: c_int,
    path: &'a CStr,
}

impl<'a> Name<'a> {
    /// # Safety
    /// As the program would vouch for the string to the kernel.
    unsafe fn new(directory: c_int, path: *const c_char) -> Self {
        let path = match path.is_null() {
            true => c"",
            // SAFETY: by the caller.
            false => unsafe { CStr::from_ptr(path) },
        };
        Self { directory, path }
    }

    fn now(self) -> u64 {
        Made::inode(self.directory, self.path).0
    }
}

/// A change of a name.
#[derive(Clone, Copy)]
enum Effect<'a> {
    /// The name is made.
    Make(Name<'a>),
    /// The name is removed.
    Remove(Name<'a>),
    /// The first name becomes the second name.
    Rename(Name<'a>, Name<'a>),
}

impl Effect<'_> {
    fn name(&self) -> Name<'_> {
        match *self {
            Self::Make(name) | Self::Remove(name) | Self::Rename(name, _) => name,
        }
    }

    /// Whether the change was made since the file `before` had the name.
    fn was_done(&self, before: u64) -> bool {
        let now = self.name().now();
        match self {
            Self::Make(_) => before == 0 && now != 0,
            Self::Remove(_) => before != 0 && now != before,
            Self::Rename(_, to) => before != 0 && now != before && to.now() == before,
        }
    }
}

impl Wrap {
    /// A name is about to change. In a replay: the file that had the name then.
    pub(super) fn intend(&mut self, name: c_int, now: impl FnOnce() -> Made) -> Option<Made> {
        let replayed = self.replayed(Call::Intent, name, |record| {
            let inode = record.payload.try_into().map(u64::from_le_bytes);
            Made(inode.unwrap_or(0))
        });
        if replayed.is_some() {
            return replayed;
        }
        self.record(&Record {
            call: Call::Intent,
            fd: name.cast_unsigned(),
            outcome: 0,
            payload: &now().0.to_le_bytes(),
        });
        None
    }

    fn affect(&mut self, effect: Effect<'_>, perform: impl FnOnce() -> Outcome) -> Outcome {
        let name = named(effect.name().path);
        let before = self.intend(name, || Made(effect.name().now()));
        match effect {
            Effect::Rename(_, goes) | Effect::Remove(goes) => self.keep(goes.directory, goes.path),
            Effect::Make(_) => {}
        }
        let replayed = self.replayed(Call::File, name, |record| record.outcome);
        if let Some(outcome) = replayed {
            if outcome == 0 {
                self.was_affected(effect, before, perform);
            }
            return outcome;
        }
        self.commit_effect();
        let outcome = match before {
            Some(Made(inode)) if effect.was_done(inode) => {
                // The dead incarnation made the call, and died before the record of the outcome.
                self.was_affected(effect, before, perform);
                live::find_files(self);
                0
            }
            _ => perform(),
        };
        self.record(&Record {
            call: Call::File,
            fd: name.cast_unsigned(),
            outcome,
            payload: &[],
        });
        outcome
    }

    /// The file `before` was changed, and the file that the replay has recreated was not changed yet.
    fn was_affected(
        &mut self,
        effect: Effect<'_>,
        before: Option<Made>,
        perform: impl FnOnce() -> Outcome,
    ) {
        if let (Effect::Rename(_, to), Some(Made(before))) = (effect, before) {
            self.find_replayed(before, to);
        }
        self.replay_effect(effect, perform);
    }

    /// The original file has this name now: descriptors continue with the original, in place of the recreated file.
    fn find_replayed(&mut self, inode: u64, name: Name<'_>) {
        if inode == 0 || name.now() != inode {
            return;
        }
        while let Some(fd) = self.descriptors.remaking(inode) {
            let is_found = exchange(fd, name);
            if let Some(entry) = self.descriptors.entry(fd) {
                entry.backing = match is_found {
                    true => Backing::Written,
                    false => Backing::Nothing,
                };
            }
        }
    }

    /// A recreated file is renamed or removed as then, and never replaces an existing file. Only a socket replaces a
    /// socket without a listener.
    fn replay_effect(&mut self, effect: Effect<'_>, perform: impl FnOnce() -> Outcome) {
        let inode = effect.name().now();
        if !self.remade.has(inode) {
            return;
        }
        match effect {
            Effect::Rename(from, to)
                if to.now() != 0 && !Made::is_socket(from.directory, from.path) =>
            {
                // SAFETY: a string.
                unsafe { sys!(SYS_unlinkat, from.directory, from.path.as_ptr(), 0) };
                self.remade.forget(inode);
            }
            Effect::Rename(..) => {
                perform();
            }
            Effect::Remove(_) => {
                perform();
                self.remade.forget(inode);
            }
            Effect::Make(_) => {}
        }
    }

    /// Changes that may be made twice without harm.
    fn settle(&mut self, name: c_int, perform: impl FnOnce() -> Outcome) -> Outcome {
        let replayed = self.replayed(Call::File, name, |record| record.outcome);
        replayed.unwrap_or_else(|| {
            self.commit_effect();
            let outcome = perform();
            self.record(&Record {
                call: Call::File,
                fd: name.cast_unsigned(),
                outcome,
                payload: &[],
            });
            outcome
        })
    }
}

/// Opens the file with this name under this descriptor number, with the flags and the position of the earlier file.
/// `false`: the file is shorter than the position.
fn exchange(fd: c_int, name: Name<'_>) -> bool {
    // SAFETY: only the name is read; the numbers are the program's, or ours.
    unsafe {
        let flags = sys!(SYS_fcntl, fd, libc::F_GETFL);
        let closes = sys!(SYS_fcntl, fd, libc::F_GETFD) & i64::from(libc::FD_CLOEXEC) != 0;
        let place = sys!(SYS_lseek, fd, 0, libc::SEEK_CUR);
        let file = sys!(SYS_openat, name.directory, name.path.as_ptr(), flags);
        if file < 0 || flags < 0 {
            return false;
        }
        let is_whole = identity(fd_of(file)).is_some_and(|now| now.size.cast_signed() >= place);
        if is_whole {
            sys!(SYS_lseek, file, place, libc::SEEK_SET);
            sys!(SYS_dup3, file, fd, if closes { libc::O_CLOEXEC } else { 0 });
        }
        sys!(SYS_close, file);
        is_whole
    }
}

fn affect(effect: Effect<'_>, perform: impl Fn() -> Outcome) -> c_int {
    refuse_helper_in_shadow_replay();
    answer_int(with(|wrap| wrap.affect(effect, &perform)).unwrap_or_else(perform))
}

fn settle(name: c_int, perform: impl Fn() -> Outcome) -> c_int {
    answer_int(with(|wrap| wrap.settle(name, &perform)).unwrap_or_else(perform))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        let name = Name::new(directory, path);
        affect(Effect::Remove(name), || {
            sys!(SYS_unlinkat, directory, path, flags)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn remove(path: *const c_char) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        let name = Name::new(AT_FDCWD, path);
        affect(Effect::Remove(name), || {
            match sys!(SYS_unlinkat, AT_FDCWD, path, 0) {
                outcome if outcome == super::failed(libc::EISDIR) => {
                    sys!(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR)
                }
                outcome => outcome,
            }
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat2(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        let effect = Effect::Rename(Name::new(from_directory, from), Name::new(to_directory, to));
        affect(effect, || {
            sys!(SYS_renameat2, from_directory, from, to_directory, to, flags)
        })
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mkdirat(
    directory: c_int,
    path: *const c_char,
    mode: mode_t,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        let name = Name::new(directory, path);
        affect(Effect::Make(name), || {
            sys!(SYS_mkdirat, directory, path, mode)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkfifoat(directory: c_int, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        let name = Name::new(directory, path);
        affect(Effect::Make(name), || {
            sys!(SYS_mknodat, directory, path, mode | libc::S_IFIFO, 0)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn linkat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        let name = Name::new(to_directory, to);
        affect(Effect::Make(name), || {
            sys!(SYS_linkat, from_directory, from, to_directory, to, flags)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symlinkat(
    target: *const c_char,
    directory: c_int,
    path: *const c_char,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        let name = Name::new(directory, path);
        affect(Effect::Make(name), || {
            sys!(SYS_symlinkat, target, directory, path)
        })
    }
}

same! {
    unlink(path: *const c_char) = unlinkat(AT_FDCWD, path, 0);
    rmdir(path: *const c_char) = unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
    mkdir(path: *const c_char, mode: mode_t) = mkdirat(AT_FDCWD, path, mode);
    mkfifo(path: *const c_char, mode: mode_t) = mkfifoat(AT_FDCWD, path, mode);
    rename(from: *const c_char, to: *const c_char) = renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
    renameat(from_directory: c_int, from: *const c_char, to_directory: c_int, to: *const c_char) =
        renameat2(from_directory, from, to_directory, to, 0);
    link(from: *const c_char, to: *const c_char) = linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
    symlink(target: *const c_char, path: *const c_char) = symlinkat(target, AT_FDCWD, path);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate(path: *const c_char, length: off_t) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        let name = named(Name::new(AT_FDCWD, path).path);
        refuse_helper_in_shadow_replay();
        settle(name, || sys!(SYS_truncate, path, length))
    }
}

/// Only a file that the program has opened by name can be identified.
fn settle_file(fd: c_int, perform: impl Fn() -> Outcome) -> c_int {
    match super::kind(fd, "a file's call") {
        Kind::File => settle(fd, perform),
        _ => answer_int(perform()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(fd: c_int, length: off_t) -> c_int {
    refuse_helper_in_shadow_replay();
    // SAFETY: no memory is involved.
    let perform = || unsafe { sys!(SYS_ftruncate, fd, length) };
    if super::kind(fd, "ftruncate") != Kind::File {
        return answer_int(perform());
    }
    let outcome = with(|wrap| wrap.truncate(fd, length, perform));
    answer_int(outcome.unwrap_or_else(perform))
}

impl Wrap {
    fn truncate(&mut self, fd: c_int, length: off_t, perform: impl Fn() -> Outcome) -> Outcome {
        let is_replay = self.is_replay;
        let outcome = self.settle(fd, &perform);
        if is_replay && self.is_replay && self.replays_write(fd) {
            perform();
        }
        if let Some(entry) = self.descriptors.entry(fd).filter(|_| outcome == 0) {
            entry.end = length.cast_unsigned();
        }
        outcome
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, from: off_t, length: off_t) -> c_int {
    refuse_helper_in_shadow_replay();
    // SAFETY: no memory is involved.
    settle_file(fd, || unsafe {
        sys!(SYS_fallocate, fd, mode, from, length)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    // SAFETY: no memory is involved.
    settle_file(fd, || unsafe { sys!(SYS_fsync, fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: no memory is involved.
    settle_file(fd, || unsafe { sys!(SYS_fdatasync, fd) })
}

same! {
    truncate64(path: *const c_char, length: off_t) = truncate(path, length);
    ftruncate64(fd: c_int, length: off_t) = ftruncate(fd, length);
    fallocate64(fd: c_int, mode: c_int, from: off_t, length: off_t) = fallocate(fd, mode, from, length);
}
