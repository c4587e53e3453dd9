//! The wrap's beginning, before the program's.

use core::{ffi::CStr, ptr, sync::atomic::Ordering};

use libc::{ADDR_NO_RANDOMIZE, MAP_SHARED, PROT_READ, PROT_WRITE, c_char, c_int};
use north_abi::{
    Call, Clock, Record,
    layout::{
        FILE_FD, Failure, Fate, HANDOVER_FD, LIBRARY_FD, LOGGER_SOCKET_FD, MAGIC, Mode, Page,
        SOCKET_FD, VARIABLE, VERSION,
    },
    locks::Locks,
};

use crate::{
    allocators,
    calls::{effects::Remade, kept::Kept, relistening::ClosedListeners, writing::Unrecorded},
    children::Children,
    datagrams, descriptors,
    determinant_sender::DeterminantSender,
    helpers,
    ipc_replay::PendingIpcWrites,
    live::Positions,
    messages::say,
    output_commit::deferred::{self, CommitWait, RoundTrip},
    places,
    process_group::ProcessGroup,
    program::{Other, Program},
    read_cursors,
    shared_state_guard::{self, Role},
    stream::Stream,
    sys::sys,
    wrap::{self, Wrap, exit},
};

/// [`VARIABLE`], which children are not to find.
const PASSED_ON: &CStr = c"OUTLIVE_WRAP";

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = begin;

extern "C" fn begin(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: the arguments that the C library gives to all such functions.
    if unsafe { is_wanted(environment) } {
        start();
    }
}

/// Whether the environment announces the memory file.
///
/// # Safety
/// `environment` is an array of strings with a null pointer at the end.
unsafe fn is_wanted(mut environment: *const *const c_char) -> bool {
    loop {
        // SAFETY: by the caller.
        let entry = unsafe { *environment };
        if entry.is_null() {
            return false;
        }
        // SAFETY: by the caller.
        let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if entry
            .strip_prefix(VARIABLE.as_bytes())
            .is_some_and(|rest| rest.first() == Some(&b'='))
        {
            return true;
        }
        // SAFETY: before the end.
        environment = unsafe { environment.add(1) };
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// At exit the kernel closes the sockets, and the clients see the close.
extern "C" fn end() {
    // Writes the rest of the C library's streams now, because later writes are not recorded.
    // SAFETY: no stream is named.
    unsafe { libc::fflush(ptr::null_mut()) };
    wrap::with(Wrap::record_exit);
}

fn refuse(why: &[u8]) -> ! {
    say(&[b"the server cannot be wrapped: ", why]);
    exit();
}

fn start() {
    // SAFETY: a new mapping of the file that was left for us.
    let page = unsafe {
        let length = size_of::<Page>();
        sys!(
            SYS_mmap,
            places::PAGE,
            length,
            PROT_READ | PROT_WRITE,
            MAP_SHARED,
            FILE_FD,
            0
        )
    };
    let Ok(page) = usize::try_from(page) else {
        refuse(b"its memory file is missing");
    };
    // SAFETY: mapped for good, and large enough; the page has only atomics, for which all bytes are valid.
    let page: &'static Page = unsafe { &*ptr::with_exposed_provenance::<Page>(page) };
    if page.magic.load(Ordering::Acquire) != MAGIC
        || page.version.load(Ordering::Acquire) != VERSION
    {
        refuse(b"its memory file is another version's");
    }
    for fd in [FILE_FD, SOCKET_FD, HANDOVER_FD, LOGGER_SOCKET_FD] {
        // A program that this program executes is not part of the service.
        // SAFETY: no memory is involved.
        unsafe { sys!(SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // The library is loaded: the program may use the number.
    // SAFETY: no memory is involved.
    unsafe { sys!(SYS_close, LIBRARY_FD) };
    helpers::keep_numbers();
    // An executed program gets random addresses again; the addresses of this program are already fixed.
    // SAFETY: no memory is involved.
    unsafe {
        let now = sys!(SYS_personality, u32::MAX);
        if now >= 0 {
            sys!(SYS_personality, now & !i64::from(ADDR_NO_RANDOMIZE));
        }
    }
    for name in [c"LD_PRELOAD", PASSED_ON] {
        // SAFETY: a string; no other thread runs yet.
        unsafe { libc::unsetenv(name.as_ptr()) };
    }
    if page.mode.load(Ordering::Acquire) != Mode::Record as u32 {
        allocators::leave_alone();
        return;
    }
    if page.pause_at.load(Ordering::Acquire) != 0 {
        shared_state_guard::set_role(Role::ShadowReplay);
    }
    page.next_process.fetch_max(1, Ordering::AcqRel);
    let entry = &page.processes.0[0];
    // SAFETY: no memory is involved.
    let pid = unsafe { sys!(SYS_getpid) };
    let own = i32::try_from(pid).unwrap_or(0);
    let mut stream = Stream::new(page, entry, 0);
    let mut wrap = Wrap {
        page,
        process: 0,
        pid: own,
        pid_now: own,
        may_have_opened: false,
        is_replay: stream.is_replay(),
        stream,
        // SAFETY: here, once.
        descriptors: unsafe { descriptors::table() },
        clock: Clock::default(),
        outstream: 0,
        unrecorded: Unrecorded::default(),
        rests: Unrecorded::default(),
        children: Children::default(),
        group: ProcessGroup::default(),
        pending_ipc: PendingIpcWrites::default(),
        limit: None,
        locks: Locks::default(),
        closed_listeners: ClosedListeners::default(),
        remade: Remade::default(),
        kept: Kept::default(),
        sender: DeterminantSender::default(),
        // SAFETY: here, once.
        datagrams: unsafe { datagrams::datagrams() },
        round_trip: RoundTrip::new(),
        // SAFETY: here, once.
        deferred: unsafe { deferred::deferred_output() },
        commit_wait: CommitWait::default(),
        // SAFETY: here, once.
        reads: unsafe { read_cursors::reads() },
        next_table_request: 0,
        confirmed: (0, 0),
        positions: Positions::new(page.positions.load(Ordering::Acquire)),
    };
    let Some(program) = Program::running() else {
        refuse(b"/proc does not say which program it is");
    };
    if wrap.is_replay {
        entry.set(Fate::Replays);
        let first = wrap.replayed(Call::Start, 0, |record| {
            (record.outcome, program.compare(record.payload))
        });
        let failure = match first {
            Some((pid, Ok(()))) => {
                wrap.pid = i32::try_from(pid).unwrap_or(own);
                None
            }
            Some((_, Err(Other::Version))) => Some(Failure::OtherVersion),
            _ => Some(Failure::OtherProgram),
        };
        if let Some(failure) = failure {
            wrap.fail(failure, Call::Start, Some(Call::Start));
        }
    } else {
        wrap.record(&Record {
            call: Call::Start,
            fd: 0,
            outcome: pid,
            payload: program.as_bytes(),
        });
    }
    wrap.register_liveness();
    wrap::begin(wrap);
}
