//! A *shadow replay* stops in the middle of its replay for an image. A process restored from an image continues the
//! replay, in another shadow replay or as the service.
//!
//! The process stops directly after a record, before the program has used the outcome. The next record, of a write or
//! a clock for instance, is then met as in any replay. At that moment the process has open only the program's own
//! descriptors: neither the memory file, which is as large as all streams, nor the supervisor's sockets. The restored
//! process receives new descriptors.

use core::{mem::MaybeUninit, sync::atomic::Ordering};

use libc::{
    AF_UNIX, MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, O_ACCMODE, O_CLOEXEC, PROT_READ,
    PROT_WRITE, SO_PEERCRED, SOCK_CLOEXEC, SOCK_STREAM, SOL_SOCKET, c_int, cmsghdr, iovec, msghdr,
    sockaddr_un, ucred,
};
use north_abi::{
    Call,
    handover::{Entry, Message},
    layout::{
        Claimed, FILE_FD, Failure, Fate, HANDOVER_FD, Hold, LOGGER_SOCKET_FD, MAGIC, MUTE_FLAGS,
        Page, RESUMED, SOCKET_FD, VERSION, resume_name,
    },
};

use crate::{
    calls::accepting::keep_syns,
    clock, closing,
    descriptors::{Connection, KEPT_OPTIONS},
    helpers,
    live::{self, Positions},
    messages::say,
    output_commit::deferred::RoundTrip,
    shared_state_guard::{self, Role},
    sys::{Outcome, sys},
    wrap::{Wrap, exit},
};

/// Interval of polls of a stopped process.
const PAUSED_POLL_INTERVAL_NS: i64 = 20_000_000;

/// No descriptor.
const NO_DESCRIPTOR: c_int = -1;

/// First process of a sandbox.
const SANDBOX_INIT_PID: libc::pid_t = 1;

/// Stops here. The process that returns was restored from the image of this process.
#[cold]
pub(crate) fn pause(wrap: &mut Wrap) {
    // Helpers whose sleep is over wait until the program sleeps.
    helpers::for_us(|| stop(wrap));
}

fn stop(wrap: &mut Wrap) {
    // Only the memory of a shadow replay has the recreated files.
    if wrap.descriptors.remade().any(|fd| !closing::is_closed(fd)) {
        wrap.fail(Failure::OtherFile, Call::File, None);
    }
    live::find_files(wrap); // an image that lacks a file would be useless
    let image = wrap.page.image.load(Ordering::Acquire);
    let connections = wrap.page.next_connection.load(Ordering::Acquire);
    for connection in wrap.descriptors.connections_mut() {
        if connection.is_outgoing() {
            live::report_position(wrap.process, connection, false);
        } else {
            live::put(&open(connection), &[]);
        }
        keep_options(connection);
    }
    let message = Message::Paused {
        process: wrap.process,
    };
    if !live::send(&message, None, 0) {
        exit();
    }
    shared_state_guard::set_role(Role::Paused);
    forget(wrap);
    let given = loop {
        sleep();
        if let Some(given) = given(image) {
            break given;
        }
    };
    take_up(wrap, given, connections);
}

fn open(connection: &Connection) -> Entry<'static> {
    Entry::Open {
        connection: connection.number,
        fd: connection.fd().cast_unsigned(),
        ends: live::ends(connection),
    }
}

/// Saves the options that an image of an unconnected socket lacks.
fn keep_options(connection: &mut Connection) {
    let fd = connection.fd();
    for ((level, name), kept) in KEPT_OPTIONS.into_iter().zip(&mut connection.options) {
        let mut length: u32 = 4;
        // SAFETY: an `int` of ours.
        unsafe {
            let at = &raw mut *kept;
            sys!(SYS_getsockopt, fd, level, name, at, &raw mut length);
        }
    }
}

fn restore_options(connection: &Connection) {
    let fd = connection.fd();
    for ((level, name), kept) in KEPT_OPTIONS.into_iter().zip(&connection.options) {
        // SAFETY: an `int` of ours.
        unsafe { sys!(SYS_setsockopt, fd, level, name, &raw const *kept, 4) };
    }
}

/// Closes everything that is not the program's. The socket is the last: its close shows that the rest is closed.
fn forget(wrap: &mut Wrap) {
    wrap.let_go_of_listeners();
    wrap.stream.unmap();
    wrap.positions.unmap();
    // Other threads may read the page at any time: a page of zeros does not mislead these threads.
    let (at, length) = (&raw const *wrap.page, size_of::<Page>());
    let access = PROT_READ | PROT_WRITE;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    // SAFETY: replaces the present mapping, and all zeros is a valid page.
    if unsafe { sys!(SYS_mmap, at, length, access, flags, NO_DESCRIPTOR, 0) } < 0 {
        exit();
    }
    for fd in [FILE_FD, HANDOVER_FD, LOGGER_SOCKET_FD] {
        // SAFETY: no memory is involved; the descriptors are ours.
        unsafe { sys!(SYS_close, fd) };
    }
    closing::let_go_of_file();
    helpers::close_files();
    // SAFETY: no memory is involved; the descriptor is ours.
    unsafe { sys!(SYS_close, SOCKET_FD) };
}

/// Sleeps for a short time.
pub(crate) fn sleep() {
    clock::sleep(PAUSED_POLL_INTERVAL_NS);
}

/// The descriptors for the continuation, if a sandbox has restored the process.
fn given(image: u64) -> Option<[c_int; RESUMED + 1]> {
    // SAFETY: a new socket.
    let socket = unsafe { sys!(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) };
    let socket = c_int::try_from(socket).ok().filter(|fd| *fd >= 0)?;
    let given = (connect(socket, image) && is_room(socket))
        .then(|| receive(socket))
        .flatten();
    // SAFETY: no memory is involved.
    unsafe { sys!(SYS_close, socket) };
    given
}

fn connect(socket: c_int, image: u64) -> bool {
    // SAFETY: all zeros is an address.
    let mut address: sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = AF_UNIX as u16;
    let name = resume_name(image);
    for (to, from) in address.sun_path[1..].iter_mut().zip(name) {
        *to = from.cast_signed();
    }
    let length = size_of_val(&address.sun_family) + 1 + name.len();
    // SAFETY: an address on our stack.
    unsafe { sys!(SYS_connect, socket, &raw const address, length) == 0 }
}

fn is_room(socket: c_int) -> bool {
    let mut who = ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<ucred>() as u32;
    // SAFETY: a structure on our stack.
    let known = unsafe {
        let at = &raw mut who;
        sys!(
            SYS_getsockopt,
            socket,
            SOL_SOCKET,
            SO_PEERCRED,
            at,
            &raw mut length
        )
    };
    known == 0 && who.pid == SANDBOX_INIT_PID
}

/// The descriptors; the last is -1 where there is no logger elsewhere.
fn receive(socket: c_int) -> Option<[c_int; RESUMED + 1]> {
    #[repr(C, align(8))]
    struct Control {
        header: cmsghdr,
        fds: [c_int; RESUMED + 1],
    }
    let mut byte = [0u8; 1];
    let mut control = MaybeUninit::<Control>::zeroed();
    let mut piece = iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: byte.len(),
    };
    // SAFETY: all zeros is an empty message.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>();
    // SAFETY: the message and its buffers are on our stack.
    let length: Outcome = unsafe {
        let flags = libc::MSG_CMSG_CLOEXEC;
        sys!(SYS_recvmsg, socket, &raw mut message, flags)
    };
    // SAFETY: zeroed, or written by the kernel.
    let control = unsafe { control.assume_init() };
    let count = control.header.cmsg_len.saturating_sub(size_of::<cmsghdr>()) / size_of::<c_int>();
    let is_it = length == 1
        && control.header.cmsg_type == libc::SCM_RIGHTS
        && (RESUMED..=RESUMED + 1).contains(&count);
    if !is_it {
        return None;
    }
    let mut fds = [-1; RESUMED + 1];
    fds[..count].copy_from_slice(&control.fds[..count]);
    Some(fds)
}

/// Continues the replay, with this number of connections before.
fn take_up(wrap: &mut Wrap, given: [c_int; RESUMED + 1], connections: u32) {
    let [file, socket, handover, input, output, error, shipping] = given;
    // The received descriptors may have any numbers, also the numbers of the others.
    let ours = [
        (file, FILE_FD),
        (socket, SOCKET_FD),
        (handover, HANDOVER_FD),
        (shipping, LOGGER_SOCKET_FD),
    ];
    for (from, to) in ours.into_iter().filter(|(from, _)| *from >= 0) {
        place(from, to, O_CLOEXEC);
    }
    for (from, to) in [(input, 0), (output, 1), (error, 2)] {
        if is_mute(to) {
            place(from, to, 0);
        } else {
            // SAFETY: no memory is involved.
            unsafe { sys!(SYS_close, from) };
        }
    }
    map_page(wrap);
    wrap.register_liveness();
    helpers::open_files(wrap);
    shared_state_guard::set_role(match wrap.page.pause_at.load(Ordering::Acquire) {
        0 => Role::Service,
        _ => Role::ShadowReplay,
    });
    let page = wrap.page;
    page.processes.0[wrap.process as usize].set(Fate::Replays);
    page.next_process.fetch_max(1, Ordering::AcqRel);
    page.next_connection
        .fetch_max(connections, Ordering::AcqRel);
    for listener in wrap.descriptors.listeners() {
        keep_syns(listener); // an image has no such option
    }
    wrap.stream.resume();
    wrap.round_trip = RoundTrip::new(); // measured on another network
    wrap.kept.forget_copies();
    wrap.compare_files();
    wrap.finds_locked_files();
    wrap.positions = Positions::new(page.positions.load(Ordering::Acquire));
    let positions = &wrap.positions;
    for connection in wrap.descriptors.connections_mut() {
        restore_options(connection);
        // No other process can be the owner.
        if connection.is_served {
            let claimed = page.serving.claim(connection.number, wrap.process);
            connection.is_served = claimed == Claimed::Own;
        }
        if !connection.is_outgoing() {
            let received = positions.of(connection.peer.as_bytes(), connection.local.as_bytes());
            connection.received = connection.received.max(received);
        }
    }
}

/// Moves the descriptor to its number.
fn place(from: c_int, to: c_int, flags: c_int) {
    if from == to {
        return;
    }
    // SAFETY: descriptors of ours.
    let placed = unsafe { sys!(SYS_dup3, from, to, flags) };
    // SAFETY: no memory is involved.
    unsafe { sys!(SYS_close, from) };
    if placed < 0 {
        refuse(b"its descriptors cannot be put where they were");
    }
}

/// Whether the descriptor is still the standard stream of a shadow replay.
fn is_mute(fd: c_int) -> bool {
    // SAFETY: no memory is involved.
    let flags = unsafe { sys!(SYS_fcntl, fd, libc::F_GETFL) };
    let wanted = i64::from(MUTE_FLAGS | libc::O_RDWR);
    flags >= 0 && flags & i64::from(MUTE_FLAGS | O_ACCMODE) == wanted
}

fn map_page(wrap: &Wrap) {
    let (at, length) = (&raw const *wrap.page, size_of::<Page>());
    let access = PROT_READ | PROT_WRITE;
    // SAFETY: replaces the page of zeros of [`forget`].
    let mapped = unsafe {
        sys!(
            SYS_mmap,
            at,
            length,
            access,
            MAP_SHARED | MAP_FIXED,
            FILE_FD,
            0
        )
    };
    let page = wrap.page;
    if mapped < 0
        || page.magic.load(Ordering::Acquire) != MAGIC
        || page.version.load(Ordering::Acquire) != VERSION
    {
        refuse(b"its memory file is another one");
    }
}

fn refuse(why: &[u8]) -> ! {
    say(&[
        b"the process that was made from an image cannot go on: ",
        why,
    ]);
    exit();
}

// Values that other threads find in a page of zeros.
const _: () = assert!(Hold::Never as u32 == 0);
