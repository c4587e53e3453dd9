//! The runner is a copy of make, because a program takes longer to begin than many commands take.
//!
//! `posix_spawn` gets actions on descriptors as a list that only the C library can read. Therefore the actions that
//! make adds are recorded. A caller with other actions than those of make today is refused here, and the runner is
//! begun as a program.

use std::{
    ffi::{OsStr, c_char, c_int, c_short},
    fs,
    os::unix::ffi::OsStrExt as _,
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use make_rpc::runner;
use rustix::{
    param::page_size,
    process::{getegid, geteuid, getgid, getuid},
};

use libc::{mode_t, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t, sigset_t};

use crate::{arguments_of, own};

/// `POSIX_SPAWN_USEVFORK`, without an effect today.
const USE_VFORK: c_short = 0x40;
/// Memory limit of a copied make: for a larger make, a copy would take long, because the kernel copies the page tables.
const ARGUMENT_LIMIT_BYTES: usize = 64 << 20;

/// Most descriptors of make: a few, behind the inherited descriptors.
const FILE_ACTION_DESCRIPTORS: c_int = 300;

/// Recorded actions on descriptors.
struct List {
    /// Address of the C library's list.
    of: usize,
    /// From and to, in order; `None` if the list has other actions, too.
    moves: Option<Vec<(c_int, c_int)>>,
}

/// Whether this process is a copy: a copy does not end as a make.
static IS_COPY: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_copy() -> bool {
    IS_COPY.load(Ordering::Relaxed)
}

static LISTS: Mutex<Vec<List>> = Mutex::new(Vec::new());

fn lists() -> MutexGuard<'static, Vec<List>> {
    LISTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn change(of: *const posix_spawn_file_actions_t, change: impl FnOnce(&mut List)) {
    let mut lists = lists();
    if let Some(list) = lists.iter_mut().find(|list| list.of == of.addr()) {
        change(list);
    }
}

/// The moves of a list that only moves descriptors.
fn moves(of: *const posix_spawn_file_actions_t) -> Option<Vec<(c_int, c_int)>> {
    if of.is_null() {
        return Some(Vec::new());
    }
    let lists = lists();
    let list = lists.iter().find(|list| list.of == of.addr());
    list?.moves.clone()
}

/// The C library's functions, with a record before each call.
macro_rules! noted {
    ($($name:ident($list:ident $(, $argument:ident: $kind:ty)*) $note:block)*) => {$(
        /// Recorded, and passed to the C library.
        ///
        /// # Safety
        /// As for the function of the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $list: *mut posix_spawn_file_actions_t
            $(, $argument: $kind)*
        ) -> c_int {
            let own = own(
                const {
                    match std::ffi::CStr::from_bytes_with_nul(
                        concat!(stringify!($name), "\0").as_bytes(),
                    ) {
                        Ok(name) => name,
                        Err(_) => panic!("a name"),
                    }
                },
            );
            if own.is_null() {
                return libc::ENOSYS;
            }
            $note
            type Own = unsafe extern "C" fn(*mut posix_spawn_file_actions_t $(, $kind)*) -> c_int;
            // SAFETY: the pointer is the C library's function of that name, and not null.
            let own = unsafe { std::mem::transmute::<*mut libc::c_void, Own>(own) };
            // SAFETY: the caller's own arguments.
            unsafe { own($list $(, $argument)*) }
        }
    )*};
}

noted! {
    posix_spawn_file_actions_init(list) {
        let mut lists = lists();
        lists.retain(|other| other.of != list.addr());
        lists.push(List { of: list.addr(), moves: Some(Vec::new()) });
    }
    posix_spawn_file_actions_destroy(list) {
        lists().retain(|other| other.of != list.addr());
    }
    posix_spawn_file_actions_adddup2(list, from: c_int, to: c_int) {
        change(list, |list| {
            if let Some(moves) = &mut list.moves {
                moves.push((from, to));
            }
        });
    }
    posix_spawn_file_actions_addclose(list, number: c_int) {
        change(list, |list| list.moves = None);
    }
    posix_spawn_file_actions_addopen(
        list, number: c_int, path: *const c_char, flags: c_int, mode: mode_t
    ) {
        change(list, |list| list.moves = None);
    }
    posix_spawn_file_actions_addchdir_np(list, path: *const c_char) {
        change(list, |list| list.moves = None);
    }
    posix_spawn_file_actions_addfchdir_np(list, number: c_int) {
        change(list, |list| list.moves = None);
    }
    posix_spawn_file_actions_addclosefrom_np(list, number: c_int) {
        change(list, |list| list.moves = None);
    }
    posix_spawn_file_actions_addtcsetpgrp_np(list, number: c_int) {
        change(list, |list| list.moves = None);
    }
}

/// Signals of a new process.
struct Signals {
    mask: Option<sigset_t>,
    usual: Option<sigset_t>,
}

/// The signals that the attributes ask for, if the attributes ask for no other change.
fn signals(attributes: *const posix_spawnattr_t) -> Option<Signals> {
    let mut signals = Signals {
        mask: None,
        usual: None,
    };
    if attributes.is_null() {
        return Some(signals);
    }
    let mut flags: c_short = 0;
    // SAFETY: the caller's attributes, and a number that lives as long as the call.
    if unsafe { libc::posix_spawnattr_getflags(attributes, &raw mut flags) } != 0 {
        return None;
    }
    let has = |flag: c_int| c_int::from(flags) & flag != 0;
    let known = libc::POSIX_SPAWN_SETSIGMASK
        | libc::POSIX_SPAWN_SETSIGDEF
        | libc::POSIX_SPAWN_RESETIDS
        | c_int::from(USE_VFORK);
    if c_int::from(flags) & !known != 0 || has(libc::POSIX_SPAWN_RESETIDS) && is_another() {
        return None;
    }
    // SAFETY: all fields may be zero, and the call overwrites the set.
    let mut set: sigset_t = unsafe { std::mem::zeroed() };
    if has(libc::POSIX_SPAWN_SETSIGMASK) {
        // SAFETY: the caller's attributes, and a set that lives as long as the call.
        let asked = unsafe { libc::posix_spawnattr_getsigmask(attributes, &raw mut set) };
        signals.mask = (asked == 0).then_some(set);
    }
    if has(libc::POSIX_SPAWN_SETSIGDEF) {
        // SAFETY: as above.
        let asked = unsafe { libc::posix_spawnattr_getsigdefault(attributes, &raw mut set) };
        signals.usual = (asked == 0).then_some(set);
    }
    Some(signals)
}

/// Whether this process acts for another user or group than the user or group that began the process.
fn is_another() -> bool {
    getuid() != geteuid() || getgid() != getegid()
}

/// Whether this process can be copied as it is, at little cost.
fn is_plain() -> bool {
    // SAFETY: the name ends with a zero.
    let one = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    // SAFETY: a symbol that exists is the C library's, a byte with static lifetime. In a process with several threads,
    // a copy could inherit locks of threads that do not exist in the copy.
    if one.is_null() || unsafe { *one.cast::<u8>() } == 0 {
        return false;
    }
    // The peak of the memory would include the peak of the program that executed this make.
    let memory = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident = memory.split_ascii_whitespace().nth(1);
    let resident = resident.and_then(|pages| pages.parse::<usize>().ok());
    resident.is_some_and(|pages| pages.saturating_mul(page_size()) < ARGUMENT_LIMIT_BYTES)
}

/// A runner to begin.
pub(crate) struct StartedRunner<'a> {
    pub(crate) socket: &'a str,
    pub(crate) path: &'a OsStr,
    pub(crate) arguments: *const *mut c_char,
    pub(crate) environment: *const *mut c_char,
}

/// Makes a copy of this process, which is the runner. `None` if the runner must be begun as a program.
pub(crate) fn copied(
    begun: &StartedRunner<'_>,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
) -> Option<pid_t> {
    if !is_plain() {
        return None;
    }
    let (moves, signals) = (moves(actions)?, signals(attributes)?);
    // SAFETY: all fields may be zero.
    let mut all: sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: a set that lives as long as the call.
    unsafe { libc::sigfillset(&raw mut all) };
    // No handler may run until the copy has forgotten make's handlers.
    // SAFETY: sets that live as long as the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    // SAFETY: this process has a single thread, and therefore the copy may call any function.
    let child = unsafe { libc::fork() };
    if child == 0 {
        forget_handlers(signals.usual.as_ref());
        let mask = signals.mask.unwrap_or(before);
        begin(begun, &moves, &mask);
    }
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    (child > 0).then_some(child)
}

/// Sets signals as for a new program: ignored signals stay ignored, except the signals in `usual`.
fn forget_handlers(usual: Option<&sigset_t>) {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: all fields of the structure may be zero.
        let mut does: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call only reads the present action, into a structure that lives as long as the call.
        let asked = unsafe { libc::sigaction(signal, ptr::null(), &raw mut does) };
        // SAFETY: the set is the caller's.
        let is_usual = usual.is_some_and(|usual| unsafe { libc::sigismember(usual, signal) } == 1);
        if asked == 0 && (is_usual || does.sa_sigaction != libc::SIG_IGN) {
            // SAFETY: the default action needs no memory of this process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// Closes make's own descriptors: a reader of a pipe that also holds the other end would wait forever.
fn close_own() {
    for number in 3..=FILE_ACTION_DESCRIPTORS {
        // SAFETY: the call takes only numbers.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        if flags >= 0 && flags & libc::FD_CLOEXEC != 0 {
            // SAFETY: no code of this process uses the descriptor from here on.
            unsafe { libc::close(number) };
        }
    }
}

/// Becomes the runner in the copy.
fn begin(begun: &StartedRunner<'_>, moves: &[(c_int, c_int)], mask: &sigset_t) -> ! {
    unsafe extern "C" {
        static mut environ: *const *mut c_char;
    }
    IS_COPY.store(true, Ordering::Relaxed);
    for (from, to) in moves {
        let moved = match from == to {
            // SAFETY: the call takes only numbers.
            true => unsafe { libc::fcntl(*from, libc::F_SETFD, 0) },
            // SAFETY: as above.
            false => unsafe { libc::dup2(*from, *to) },
        };
        if moved < 0 {
            // SAFETY: the end of this process needs no cleanup.
            unsafe { libc::_exit(127) };
        }
    }
    close_own();
    // SAFETY: a set that lives as long as the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
    // SAFETY: there is a single thread, and the caller's environment stays.
    unsafe { environ = begun.environment };
    // SAFETY: the caller's list.
    let arguments = unsafe { arguments_of(begun.arguments) };
    let arguments = arguments
        .map(|argument| OsStr::from_bytes(argument.to_bytes()).to_owned())
        .collect();
    let status = runner::for_make(begun.socket, begun.path.to_owned(), arguments);
    runner::end_as(status)
}
