//! Locks on files. A replay takes no locks: the record has the outcomes, and a process at the end of its record would
//! block other processes with a lock. At the end of the replay the process takes the locks that it had.
//!
//! A lock is recorded after the call, and an unlock before the call: no two records end with the same lock.

use core::{mem::MaybeUninit, sync::atomic::Ordering};

use libc::{c_int, off_t};
use north_abi::{
    Call, Record,
    layout::Failure,
    locks::{How, IMPLICIT_UNLOCK_PAYLOAD, LOCK_RANGE_BYTES, Lock, Owner, UNLOCK_FAILED_PAYLOAD},
};

use super::{failed, refuse};
use crate::{
    clock, closing,
    errno::answer_int,
    ipc_replay::SIBLING_REPLAY_TIMEOUT_NS,
    messages::say,
    process_group::REPLAY_POLL_INTERVAL_NS,
    shared_state_guard::refuse_helper_in_shadow_replay,
    signals::blocking,
    sys::{self, Outcome, structure, sys},
    wrap::{Wrap, restarting, with},
};

/// `lockf(3)`.
const UNLOCK: c_int = 0;
const LOCK: c_int = 1;
const TRY_LOCK: c_int = 2;
const TEST: c_int = 3;

/// A lock or unlock that the program asks for.
struct Asked {
    lock: Lock,
    is_locked: bool,
    /// Wait until the lock is free.
    waits: bool,
}

impl Asked {
    /// From an `fcntl(2)` call. `None`: the command has no lock.
    ///
    /// # Safety
    /// The program vouches for the argument, as to the kernel.
    unsafe fn of_record(fd: c_int, command: c_int, argument: *const libc::flock) -> Option<Self> {
        let owner = match command {
            libc::F_SETLK | libc::F_SETLKW => Owner::Process,
            libc::F_OFD_SETLK | libc::F_OFD_SETLKW => Owner::OpenFile,
            _ => return None,
        };
        // SAFETY: by the caller.
        let asked = unsafe { argument.as_ref() }?;
        let begin = asked.l_start.saturating_add(base(fd, asked.l_whence));
        let (start, end) = match asked.l_len {
            0 => (begin, i64::MAX),
            length @ 1.. => (begin, begin.saturating_add(length)),
            length => (begin.saturating_add(length), begin),
        };
        let kind = c_int::from(asked.l_type);
        let lock = Lock {
            file: [0; 2],
            fd,
            owner,
            start,
            end,
            how: if kind == libc::F_RDLCK {
                How::Shared
            } else {
                How::Exclusive
            },
        };
        Some(Self {
            lock,
            is_locked: kind != libc::F_UNLCK,
            waits: [libc::F_SETLKW, libc::F_OFD_SETLKW].contains(&command),
        })
    }

    /// By `flock(2)`.
    fn of_whole(fd: c_int, operation: c_int) -> Self {
        let kind = operation & !libc::LOCK_NB;
        let lock = Lock {
            file: [0; 2],
            fd,
            owner: Owner::Whole,
            start: 0,
            end: i64::MAX,
            how: if kind == libc::LOCK_SH {
                How::Shared
            } else {
                How::Exclusive
            },
        };
        Self {
            lock,
            is_locked: kind != libc::LOCK_UN,
            waits: operation & libc::LOCK_NB == 0,
        }
    }
}

/// Offset to which the start of a lock is relative.
fn base(fd: c_int, whence: libc::c_short) -> off_t {
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: memory on our stack, which is read only after success.
    unsafe {
        match whence.into() {
            libc::SEEK_CUR => sys!(SYS_lseek, fd, 0, libc::SEEK_CUR).max(0),
            libc::SEEK_END if sys!(SYS_fstat, fd, about.as_mut_ptr()) == 0 => {
                about.assume_init().st_size
            }
            _ => 0,
        }
    }
}

/// Whether the descriptors have the same open file description.
fn is_same_open_file(one: c_int, other: c_int) -> bool {
    const KCMP_FILE: c_int = 0;
    // SAFETY: no memory is involved.
    one == other
        || unsafe {
            let own = sys!(SYS_getpid);
            sys!(SYS_kcmp, own, own, KCMP_FILE, one, other) == 0
        }
}

fn is_same_owner(one: &Lock, other: &Lock) -> bool {
    one.file == other.file
        && one.owner == other.owner
        && (one.owner == Owner::Process || is_same_open_file(one.fd, other.fd))
}

/// Takes the lock if the lock is free.
fn take(lock: &Lock) -> Outcome {
    let is_shared = lock.how == How::Shared;
    let (record, whole) = match is_shared {
        true => (libc::F_RDLCK, libc::LOCK_SH),
        false => (libc::F_WRLCK, libc::LOCK_EX),
    };
    let length = if lock.end == i64::MAX {
        0
    } else {
        lock.end - lock.start
    };
    let asked = libc::flock {
        l_type: record as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: lock.start,
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: the structure is on our stack.
    unsafe {
        match lock.owner {
            Owner::Process => sys!(SYS_fcntl, lock.fd, libc::F_SETLK, &raw const asked),
            Owner::OpenFile => sys!(SYS_fcntl, lock.fd, libc::F_OFD_SETLK, &raw const asked),
            Owner::Whole => sys!(SYS_flock, lock.fd, whole | libc::LOCK_NB),
        }
    }
}

impl Wrap {
    /// Identity of a file: the device, and the inode at the first open(2). `None`: no such descriptor.
    fn file(&self, fd: c_int) -> Option<[u64; 2]> {
        let known = self.descriptors.get(fd).inode;
        let mut about = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: memory on our stack, which is read only after success.
        let about = unsafe {
            let is_there = sys!(SYS_fstat, fd, about.as_mut_ptr()) == 0;
            is_there.then(|| about.assume_init())
        };
        about.map(|about| [about.st_dev, if known == 0 { about.st_ino } else { known }])
    }

    /// The process was made from an image, perhaps on another host: devices have other numbers.
    pub(crate) fn finds_locked_files(&mut self) {
        let mut locks = core::mem::take(&mut self.locks);
        locks.retain(|lock| {
            lock.file = self.file(lock.fd).unwrap_or(lock.file);
            true
        });
        self.locks = locks;
    }

    /// The program locks or unlocks a file.
    fn lock(&mut self, asked: &Asked, perform: impl FnOnce() -> Outcome) -> Outcome {
        let Some(file) = self.file(asked.lock.fd) else {
            return perform();
        };
        let mut lock = Lock { file, ..asked.lock };
        let outcome = match self.replay_lock(&mut lock) {
            Some(outcome) => outcome,
            None if asked.is_locked && !self.weakens(&lock) => {
                self.lock_now(&lock, asked.waits, perform)
            }
            None => self.let_go_now(&lock, perform),
        };
        let is_same = |known: &Lock| is_same_owner(known, &lock);
        let has_room = outcome != 0 || self.locks.set(&lock, asked.is_locked, is_same);
        if !has_room && !self.is_off() {
            refuse(&[b"the server has too many file locks"]);
        }
        outcome
    }

    /// Whether an exclusive lock becomes a shared lock: recorded like an unlock, because other processes may lock
    /// from then on.
    fn weakens(&self, lock: &Lock) -> bool {
        let is_whole = |known: &Lock| known.start <= lock.start && lock.end <= known.end;
        lock.how == How::Shared
            && lock.owner != Owner::Whole
            && self.locks.all().iter().any(|known| {
                is_same_owner(known, lock) && known.how == How::Exclusive && is_whole(known)
            })
    }

    fn lock_now(&mut self, lock: &Lock, waits: bool, perform: impl FnOnce() -> Outcome) -> Outcome {
        let is_other = |known: &Lock| is_same_owner(known, lock) && known.how != lock.how;
        if lock.owner == Owner::Whole && self.locks.all().iter().any(is_other) {
            // The kernel releases the old lock before the attempt to take the new lock.
            self.is_to_let_go(lock.fd, IMPLICIT_UNLOCK_PAYLOAD);
            self.locks.retain(|known| !is_same_owner(known, lock));
        }
        if waits {
            self.before_sleep();
        }
        let outcome = perform();
        if outcome == 0 {
            // The holder of the lock may have died, and this process must die with the service.
            self.poll_any_crash();
        }
        self.note_lock(lock.fd, outcome, lock.payload(&mut [0; LOCK_RANGE_BYTES]));
        outcome
    }

    fn let_go_now(&mut self, lock: &Lock, perform: impl FnOnce() -> Outcome) -> Outcome {
        self.is_to_let_go(lock.fd, lock.payload(&mut [0; LOCK_RANGE_BYTES]));
        let outcome = perform();
        if outcome < 0 {
            self.note_lock(lock.fd, outcome, UNLOCK_FAILED_PAYLOAD);
        }
        outcome
    }

    /// Another process of the service may record the lock at once. No host may have that record without the record of
    /// this unlock.
    fn is_to_let_go(&mut self, fd: c_int, payload: &[u8]) {
        self.note_lock(fd, 0, payload);
        if self.page.next_process.load(Ordering::Relaxed) > 1 {
            self.commit();
        }
    }

    fn note_lock(&mut self, fd: c_int, outcome: Outcome, payload: &[u8]) {
        self.record(&Record {
            call: Call::Lock,
            fd: fd.cast_unsigned(),
            outcome,
            payload,
        });
    }

    /// In a replay: the recorded outcome, and the recorded range.
    fn replay_lock(&mut self, lock: &mut Lock) -> Option<Outcome> {
        if self.is_replay() && self.is_noted(lock.fd, IMPLICIT_UNLOCK_PAYLOAD).is_some() {
            self.locks.retain(|known| !is_same_owner(known, lock));
        }
        let replayed = self.replayed(Call::Lock, lock.fd, |record| {
            (record.outcome, lock.placed(record.payload))
        });
        let (outcome, placed) = replayed?;
        *lock = placed;
        self.is_noted(lock.fd, UNLOCK_FAILED_PAYLOAD)
            .or(Some(outcome))
    }

    /// Replays this lock record if the record comes next. Returns the outcome.
    fn is_noted(&mut self, fd: c_int, payload: &[u8]) -> Option<Outcome> {
        let wanted = (Call::Lock, fd.cast_unsigned(), payload);
        match self.stream.peek() {
            Some(Ok((record, length))) if (record.call, record.fd, record.payload) == wanted => {
                let outcome = record.outcome;
                self.advance(length);
                Some(outcome)
            }
            _ => None,
        }
    }

    /// The program closes the descriptor, and the locks of the file go.
    pub(crate) fn unlocks(&mut self, fd: c_int) {
        if self.is_replay {
            // At the end of the record no other process has the lock: an unlock would have been recorded before.
            self.is_noted(fd, IMPLICIT_UNLOCK_PAYLOAD);
            self.forget_locks(fd);
        } else if self.forget_locks(fd) {
            self.is_to_let_go(fd, IMPLICIT_UNLOCK_PAYLOAD);
        }
    }

    /// Forgets the locks that end with this descriptor. Returns whether there were any.
    fn forget_locks(&mut self, fd: c_int) -> bool {
        if self.locks.all().is_empty() {
            return false;
        }
        let closed = self.file(fd);
        let descriptors = &self.descriptors;
        let another = |lock: &Lock| {
            let mut all = descriptors.all_files();
            all.find(|other| *other != fd && is_same_open_file(*other, lock.fd))
        };
        let before = self.locks.all().len();
        self.locks.retain(|lock| match lock.owner {
            Owner::Process => Some(lock.file) != closed,
            _ if lock.fd != fd => true,
            _ => another(lock).map(|other| lock.fd = other).is_some(),
        });
        self.locks.all().len() < before
    }

    /// The record has ended: takes the locks of the record.
    pub(crate) fn take_locks(&mut self) {
        let until = clock::monotonic().saturating_add(SIBLING_REPLAY_TIMEOUT_NS);
        for place in 0..self.locks.all().len() {
            let lock = self.locks.all()[place];
            while !closing::is_closed(lock.fd) {
                let outcome = take(&lock);
                if outcome != failed(libc::EAGAIN) && outcome != failed(libc::EACCES) {
                    if outcome != 0 {
                        say(&[b"a file lock of the server cannot be taken again"]);
                    }
                    break;
                }
                if clock::monotonic() > until {
                    say(&[b"another program has locked a file that the server had locked"]);
                    self.fail(Failure::LockTaken, Call::Lock, None);
                }
                clock::sleep(REPLAY_POLL_INTERVAL_NS);
            }
        }
    }

    /// This process is a child, and does not inherit the process locks of the parent.
    pub(crate) fn inherits_locks(&mut self) {
        self.locks.retain(|lock| lock.owner != Owner::Process);
    }
}

fn lock(asked: Option<Asked>, number: i64, arguments: [usize; 6]) -> c_int {
    refuse_helper_in_shadow_replay();
    // SAFETY: as the program has called us.
    let perform = || unsafe { sys::raw(number, arguments) };
    let Some(asked) = asked else {
        return answer_int(perform());
    };
    let outcome = restarting(|wrap| {
        wrap.lock(&asked, || match asked.waits {
            // SAFETY: as the program has called us.
            true => unsafe { blocking(number, arguments) },
            false => perform(),
        })
    });
    answer_int(outcome.unwrap_or_else(perform))
}

/// Handles the lock commands of `fcntl`. `None`: another command.
///
/// # Safety
/// The program vouches for the argument, as to the kernel.
pub(super) unsafe fn fcntl(fd: c_int, command: c_int, argument: *mut libc::flock) -> Option<c_int> {
    let arguments = [fd as usize, command as usize, argument.addr(), 0, 0, 0];
    match command {
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            // SAFETY: by the caller.
            let asked = unsafe { Asked::of_record(fd, command, argument) };
            Some(lock(asked, libc::SYS_fcntl, arguments))
        }
        libc::F_GETLK | libc::F_OFD_GETLK => {
            // SAFETY: by the caller.
            Some(answer_int(unsafe { who_locks(fd, argument, arguments) }))
        }
        _ => None,
    }
}

/// Finds the holder of a conflicting lock. The program knows its children by other process ids than the kernel.
///
/// # Safety
/// As [`fcntl`].
unsafe fn who_locks(fd: c_int, found: *mut libc::flock, arguments: [usize; 6]) -> Outcome {
    // SAFETY: by the caller.
    let perform = || unsafe { sys::raw(libc::SYS_fcntl, arguments) };
    let outcome = with(|wrap| {
        let ask = |wrap: &Wrap| {
            let outcome = perform();
            // SAFETY: by the caller.
            if let Some(found) = unsafe { found.as_mut() } {
                found.l_pid = wrap.children.known(found.l_pid);
            }
            outcome
        };
        let now = if wrap.is_replay() {
            None
        } else {
            Some(ask(wrap))
        };
        // SAFETY: by the caller.
        let room = unsafe { structure(found) };
        wrap.filled(Call::Filled, fd, room, |_| now.unwrap_or_else(perform))
    });
    outcome.unwrap_or_else(perform)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn flock(fd: c_int, operation: c_int) -> c_int {
    let arguments = [fd as usize, operation as usize, 0, 0, 0, 0];
    let asked = Some(Asked::of_whole(fd, operation));
    lock(asked, libc::SYS_flock, arguments)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lockf(fd: c_int, command: c_int, length: off_t) -> c_int {
    let (command, kind) = match command {
        UNLOCK => (libc::F_SETLK, libc::F_UNLCK),
        LOCK => (libc::F_SETLKW, libc::F_WRLCK),
        TRY_LOCK => (libc::F_SETLK, libc::F_WRLCK),
        TEST => (libc::F_GETLK, libc::F_RDLCK),
        _ => return answer_int(failed(libc::EINVAL)),
    };
    let mut asked = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_CUR as libc::c_short,
        l_start: 0,
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: the structure is on our stack.
    let outcome = unsafe { fcntl(fd, command, &raw mut asked) }.unwrap_or(-1);
    let is_others = command == libc::F_GETLK && c_int::from(asked.l_type) != libc::F_UNLCK;
    match outcome {
        0 if is_others => answer_int(failed(libc::EACCES)),
        outcome => outcome,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lockf64(fd: c_int, command: c_int, length: off_t) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { lockf(fd, command, length) }
}
