//! Opened files.
//!
//! The outcome is recorded: in a replay a file that was absent then is absent, even if the dead incarnation made the
//! file later. A replay neither truncates a written file again, nor repeats the writes ([`super::contents`]).

use core::ffi::CStr;

use libc::{
    AT_FDCWD, EEXIST, O_ACCMODE, O_APPEND, O_CLOEXEC, O_CREAT, O_EXCL, O_PATH, O_RDONLY, O_RDWR,
    O_TRUNC, O_WRONLY, S_IFMT, S_IFREG, c_char, c_int, mode_t, stat,
};
use north_abi::{
    Call, Identity, Record,
    layout::{Failure, Whole},
};

use super::{effects::Made, failed, files::fd_of, writing::hash};
use crate::{
    clock, closing,
    descriptors::{Backing, Kind},
    errno::answer_int,
    messages::say,
    shared_state_guard::{self, refuse_fifo_in_shadow_replay, refuse_helper_in_shadow_replay},
    sys::{Outcome, sys},
    wrap::{Wrap, with},
};

/// Whether each read at this path gives other data.
pub(super) fn is_input(path: &CStr) -> bool {
    let path = path.to_bytes();
    path.starts_with(b"/proc/")
        || path.starts_with(b"/sys/")
        || [&b"/dev/urandom"[..], b"/dev/random"].contains(&path)
}

/// Hash of a file name for the record.
pub(super) fn named(path: &CStr) -> c_int {
    let [a, b, c, d, ..] = hash(0, path.to_bytes()).to_le_bytes();
    c_int::from_ne_bytes([a, b, c, d])
}

/// Identity of a regular file; `None`: another kind of file.
pub(super) fn identity(fd: c_int) -> Option<Identity> {
    let mut about = core::mem::MaybeUninit::<stat>::uninit();
    // SAFETY: memory on our stack, which is read only after success.
    let about = unsafe {
        if sys!(SYS_fstat, fd, about.as_mut_ptr()) < 0 {
            return None;
        }
        about.assume_init()
    };
    (about.st_mode & S_IFMT == S_IFREG).then(|| Identity {
        inode: about.st_ino,
        size: about.st_size.cast_unsigned(),
        modified: (about.st_mtime * 1_000_000_000 + about.st_mtime_nsec).cast_unsigned(),
    })
}

/// Arguments of an open(2).
#[derive(Clone, Copy)]
struct Opening<'a> {
    directory: c_int,
    path: &'a CStr,
    flags: c_int,
    mode: mode_t,
}

impl Opening<'_> {
    fn perform(&self, flags: c_int) -> Outcome {
        // SAFETY: the path lives.
        unsafe {
            sys!(
                SYS_openat,
                self.directory,
                self.path.as_ptr(),
                flags,
                self.mode
            )
        }
    }

    fn has(&self, flag: c_int) -> bool {
        self.flags & flag == flag
    }

    fn is_to_be_written(&self) -> bool {
        self.flags & O_ACCMODE != O_RDONLY && !self.has(O_PATH)
    }

    /// Flags without creation and truncation.
    fn tame(&self) -> c_int {
        self.flags & !(O_CREAT | O_EXCL | O_TRUNC)
    }

    /// Opens for reading, too, if permissions allow: the end of the file may have to be compared, and after `chroot`
    /// the descriptor is the only way to the file.
    fn perform_readable(&self, flags: c_int) -> Outcome {
        if flags & O_ACCMODE == O_WRONLY {
            let opened = self.perform(flags & !O_ACCMODE | O_RDWR);
            if opened >= 0 {
                return opened;
            }
        }
        self.perform(flags)
    }
}

impl Wrap {
    fn open(&mut self, opening: &Opening<'_>) -> Outcome {
        let name = named(opening.path);
        let made = match opening.has(O_CREAT | O_EXCL) {
            true => self.intend(name, || Made::inode(opening.directory, opening.path)),
            false => None,
        };
        if opening.has(O_TRUNC) {
            self.keep(opening.directory, opening.path);
        }
        let replayed = self.replayed(Call::File, name, |record| {
            (record.outcome, Identity::from_bytes(record.payload))
        });
        match replayed {
            Some((outcome, _)) if outcome < 0 => outcome,
            Some((outcome, then)) => self.replay_open(opening, outcome, then),
            None => self.open_now(opening, name, made),
        }
    }

    fn open_now(&mut self, opening: &Opening<'_>, name: c_int, made: Option<Made>) -> Outcome {
        if opening.flags & (O_CREAT | O_TRUNC) != 0 {
            self.commit_effect();
        }
        let mut outcome = opening.perform(opening.flags);
        // The dead incarnation made the file, and died before the record of the outcome.
        if outcome == failed(EEXIST) && made.is_some_and(|made| made.did_not_exist()) {
            outcome = opening.perform(opening.flags & !O_EXCL);
        }
        let identity = identity(fd_of(outcome)).filter(|_| outcome >= 0);
        self.record(&Record {
            call: Call::File,
            fd: name.cast_unsigned(),
            outcome,
            payload: identity
                .map(|one| one.to_bytes())
                .as_ref()
                .map_or(&[], |bytes| bytes),
        });
        if outcome >= 0 {
            self.opened(opening, fd_of(outcome), identity, Backing::Written);
        }
        outcome
    }

    /// In a replay: the same file, under the same number.
    fn replay_open(
        &mut self,
        opening: &Opening<'_>,
        outcome: Outcome,
        then: Option<Identity>,
    ) -> Outcome {
        let (opened, backing) = match then {
            None => {
                refuse_fifo_in_shadow_replay(opening.directory, opening.path);
                (opening.perform(opening.flags), Backing::Written)
            }
            Some(then) if opening.is_to_be_written() => self.reopen(opening, &then),
            Some(then) => self.open_to_read(opening, &then),
        };
        let (opened, backing) = match opened < 0 {
            true => (nothing(opening.flags), Backing::Nothing),
            false => (opened, backing),
        };
        if !take_place(opened, outcome) {
            self.fail(Failure::DescriptorTaken, Call::File, Some(Call::File));
        }
        self.opened(opening, fd_of(outcome), then, backing);
        outcome
    }

    /// Opens a file that the dead incarnation wrote.
    fn reopen(&mut self, opening: &Opening<'_>, then: &Identity) -> (Outcome, Backing) {
        let is_nameless = opening.has(libc::O_TMPFILE);
        let fd = match is_nameless {
            true => failed(libc::ENOENT), // each such file is a new file
            // CRIU accepts a file that has grown if the file is only appended to, and refuses a file that is also
            // read.
            false if shared_state_guard::is_shadow_replay() => opening.perform(opening.tame()),
            false => opening.perform_readable(opening.tame()),
        };
        if fd < 0 {
            let began_empty = is_nameless || opening.has(O_CREAT) && then.size == 0;
            if !began_empty {
                return (fd, Backing::Nothing);
            }
            if shared_state_guard::is_shadow_replay() {
                // The server beside the shadow replay may make a file of that name at any time.
                return (nothing(opening.flags), Backing::Remade);
            }
            return (self.remake(opening, is_nameless, then), Backing::Remade);
        }
        let now = identity(fd_of(fd)).map_or(0, |now| now.inode);
        // The new file may have the inode of the file that is gone.
        if self.remade.has(now) {
            if opening.has(O_TRUNC) {
                // SAFETY: no memory is involved.
                unsafe { sys!(SYS_ftruncate, fd, 0) };
            }
            return (fd, Backing::Remade);
        }
        match self.page.remade.find(then.inode, now) {
            Some(Whole::Yes) => return (fd, Backing::Written),
            // The file of a replay that did not complete the file.
            Some(Whole::Never) => {
                // SAFETY: the descriptor is ours; a string.
                unsafe {
                    sys!(SYS_close, fd);
                    sys!(SYS_unlinkat, opening.directory, opening.path.as_ptr(), 0);
                }
                return (self.remake(opening, false, then), Backing::Remade);
            }
            _ if now == then.inode => return (fd, Backing::Written),
            _ => {}
        }
        if opening.has(O_APPEND) {
            return (fd, Backing::Successor);
        }
        // SAFETY: the descriptor is ours.
        unsafe { sys!(SYS_close, fd) };
        (failed(libc::ENOENT), Backing::Nothing)
    }

    /// A file for reading is the same if size and time of the last write are equal; a copy on another host has kept
    /// the time. Files of the kernel have no times to compare.
    fn open_to_read(&mut self, opening: &Opening<'_>, then: &Identity) -> (Outcome, Backing) {
        let opened = opening.perform(opening.flags);
        let now = identity(fd_of(opened)).filter(|_| opened >= 0);
        let is_same = |now: Identity| (now.size, now.modified) == (then.size, then.modified);
        if now.is_some_and(is_same) || is_input(opening.path) {
            return (opened, Backing::Written);
        }
        if let Some(copy) = self.read_kept(opening, then) {
            if opened >= 0 {
                // SAFETY: the descriptor is ours.
                unsafe { sys!(SYS_close, opened) };
            }
            return (copy, Backing::Written);
        }
        if let Some(given) = self.given(then) {
            if opened >= 0 {
                // SAFETY: the descriptor is ours.
                unsafe { sys!(SYS_close, opened) };
            }
            return (Outcome::from(given), Backing::Written);
        }
        say(&[
            b"changed since the server first opened the file: ",
            opening.path.to_bytes(),
        ]);
        (opened, Backing::Changed)
    }

    /// The record has the content of a file that the server itself replaced.
    fn read_kept(&mut self, opening: &Opening<'_>, then: &Identity) -> Option<Outcome> {
        let copy = nothing(opening.flags);
        if copy >= 0 && self.write_kept(then, fd_of(copy)) {
            return Some(copy);
        }
        // SAFETY: the descriptor is ours.
        unsafe { sys!(SYS_close, copy) };
        None
    }

    /// Recreates a file that is gone, and that began empty.
    fn remake(&mut self, opening: &Opening<'_>, is_nameless: bool, then: &Identity) -> Outcome {
        let only = if is_nameless { 0 } else { O_CREAT | O_EXCL };
        let fd = opening.perform(opening.flags | only);
        let made = identity(fd_of(fd)).filter(|_| fd >= 0);
        if let Some(made) = made {
            if !self.remade.add(made.inode) {
                self.fail(Failure::NotSupported, Call::File, None);
            }
            if !is_nameless {
                self.page.remade.begin(then.inode, made.inode);
            }
        }
        fd
    }

    fn opened(
        &mut self,
        opening: &Opening<'_>,
        fd: c_int,
        identity: Option<Identity>,
        backing: Backing,
    ) {
        let kind = match identity {
            _ if is_input(opening.path) => Kind::Input,
            Some(_) if !opening.has(O_PATH) => Kind::File,
            _ => Kind::Other,
        };
        self.descriptors.set_kind(fd, kind);
        // For a file that is also written the record has the bytes of each read.
        if kind == Kind::File && opening.flags & O_ACCMODE == O_RDONLY {
            let own = self.is_replay.then(|| self::identity(fd)).flatten();
            for one in [identity, own].into_iter().flatten() {
                self.kept.is_read(one.inode);
            }
            if let Some(now) = own.or(identity) {
                self.give(fd, &now);
            }
        }
        if let Some(entry) = self.descriptors.entry(fd) {
            entry.appends = opening.has(O_APPEND);
            entry.is_in_place = kind == Kind::File && opening.flags & O_ACCMODE == libc::O_RDWR;
            entry.backing = backing;
            entry.end = identity.map_or(0, |identity| identity.size);
            entry.inode = identity.map_or(0, |identity| identity.inode);
            entry.modified = identity.map_or(0, |identity| identity.modified);
        }
    }

    /// The process was restored from an image: files for reading are the same as in [`Self::open_to_read`], or
    /// have changed.
    pub(crate) fn compare_files(&mut self) {
        for (fd, entry) in self.descriptors.files_mut() {
            // SAFETY: no memory is involved.
            let flags = unsafe { sys!(SYS_fcntl, fd, libc::F_GETFL) };
            let is_read = flags >= 0 && flags & i64::from(O_ACCMODE) == i64::from(O_RDONLY);
            let now = identity(fd).map(|now| (now.size, now.modified));
            if is_read
                && !closing::is_closed(fd)
                && entry.backing == Backing::Written
                && now != Some((entry.end, entry.modified))
            {
                entry.backing = Backing::Changed;
            }
        }
    }
}

/// A descriptor without content, in place of a file that is gone.
fn nothing(flags: c_int) -> Outcome {
    let closes = if flags & O_CLOEXEC == 0 {
        0
    } else {
        libc::MFD_CLOEXEC
    };
    // SAFETY: a string.
    unsafe { sys!(SYS_memfd_create, c"outlive-nothing".as_ptr(), closes) }
}

/// Moves a new descriptor to the recorded number. A file that a helper thread has not closed yet may still have the
/// number.
pub(super) fn take_place(opened: Outcome, wanted: Outcome) -> bool {
    const REOPEN_ATTEMPTS_MAX: usize = 1000;
    if opened < 0 || opened == wanted {
        return opened == wanted;
    }
    for _ in 0..REOPEN_ATTEMPTS_MAX {
        // SAFETY: no memory is involved but a structure on our stack.
        unsafe {
            let closes = sys!(SYS_fcntl, opened, libc::F_GETFD) & i64::from(libc::FD_CLOEXEC);
            let how = if closes == 0 {
                libc::F_DUPFD
            } else {
                libc::F_DUPFD_CLOEXEC
            };
            let taken = sys!(SYS_fcntl, opened, how, wanted);
            if taken == wanted {
                sys!(SYS_close, opened);
                return true;
            }
            if taken >= 0 {
                sys!(SYS_close, taken);
            }
            clock::sleep(1_000_000);
        }
    }
    false
}

// Declared with the optional arguments: a caller with fewer arguments leaves those registers undefined.

#[unsafe(no_mangle)]
unsafe extern "C" fn openat(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    let perform = || {
        // SAFETY: as the program has called us.
        unsafe { sys!(SYS_openat, directory, path, flags, mode) }
    };
    if path.is_null() {
        return answer_int(perform());
    }
    let outcome = with(|wrap| {
        wrap.open(&Opening {
            directory,
            // SAFETY: as the program has called us.
            path: unsafe { CStr::from_ptr(path) },
            flags,
            mode,
        })
    });
    answer_int(outcome.unwrap_or_else(|| {
        if flags & (O_ACCMODE | O_CREAT | O_TRUNC) != 0 {
            refuse_helper_in_shadow_replay();
        }
        perform()
    }))
}

/// Other names for the same.
macro_rules! same {
    ($($name:ident($($argument:ident: $type:ty),*) = $as:ident($($given:expr),*);)*) => {
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: as the program has called us.
            unsafe { $as($($given),*) }
        })*
    };
}
pub(super) use same;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { openat(AT_FDCWD, path, flags, mode) }
}

same! {
    openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) = openat(directory, path, flags, mode);
    open64(path: *const c_char, flags: c_int, mode: mode_t) = open(path, flags, mode);
    creat(path: *const c_char, mode: mode_t) = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
    creat64(path: *const c_char, mode: mode_t) = creat(path, mode);
    __open_2(path: *const c_char, flags: c_int) = open(path, flags, 0);
    __open64_2(path: *const c_char, flags: c_int) = open(path, flags, 0);
    __openat_2(directory: c_int, path: *const c_char, flags: c_int) = openat(directory, path, flags, 0);
    __openat64_2(directory: c_int, path: *const c_char, flags: c_int) = openat(directory, path, flags, 0);
}

/// `mkostemps`: the C library draws names without a call that the shim could replace.
unsafe fn temporary(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    let flags = flags & !O_ACCMODE | O_RDWR | O_CREAT | O_EXCL;
    // SAFETY: as the program has called us.
    unsafe { drawn(template, suffix, |name| open(name, flags, 0o600)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdtemp(template: *mut c_char) -> *mut c_char {
    // SAFETY: as the program has called us.
    let made = unsafe {
        drawn(template, 0, |name| {
            super::effects::mkdirat(AT_FDCWD, name, 0o700)
        })
    };
    if made < 0 {
        core::ptr::null_mut()
    } else {
        template
    }
}

/// Draws names until `make` makes a file of that name.
///
/// # Safety
/// As `mkstemps(3)`.
unsafe fn drawn(
    template: *mut c_char,
    suffix: c_int,
    make: impl Fn(*const c_char) -> c_int,
) -> c_int {
    const TEMPLATE_ALPHABET: &[u8; 62] =
        b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    const TEMPLATE_LETTERS: usize = 6;
    // SAFETY: as the program has called us.
    let length = unsafe { CStr::from_ptr(template) }.count_bytes();
    let end = usize::try_from(suffix)
        .ok()
        .and_then(|suffix| length.checked_sub(suffix));
    let Some(at) = end.and_then(|end| end.checked_sub(TEMPLATE_LETTERS)) else {
        return answer_int(failed(libc::EINVAL));
    };
    loop {
        // SAFETY: within the string.
        let place = unsafe { crate::sys::bytes_mut(template.add(at).cast(), TEMPLATE_LETTERS) };
        for letter in place {
            // SAFETY: the call reads no memory of ours.
            let number = unsafe { super::randomness::arc4random_uniform(62) };
            *letter = TEMPLATE_ALPHABET[number as usize % TEMPLATE_ALPHABET.len()];
        }
        let made = make(template);
        // SAFETY: this thread's own.
        if made >= 0 || unsafe { *libc::__errno_location() } != EEXIST {
            return made;
        }
    }
}

same! {
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) = temporary(template, suffix, flags);
    mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) = temporary(template, suffix, flags);
    mkstemps(template: *mut c_char, suffix: c_int) = temporary(template, suffix, 0);
    mkstemps64(template: *mut c_char, suffix: c_int) = temporary(template, suffix, 0);
    mkostemp(template: *mut c_char, flags: c_int) = temporary(template, 0, flags);
    mkostemp64(template: *mut c_char, flags: c_int) = temporary(template, 0, flags);
    mkstemp(template: *mut c_char) = temporary(template, 0, 0);
    mkstemp64(template: *mut c_char) = temporary(template, 0, 0);
}
