//! From a replayed record to live connections.
//!
//! In a replay a connection is a *placeholder*: an unconnected TCP socket with the descriptor and the options that
//! the program expects. Writes of the program to the placeholder are kept if the client may lack the bytes
//! ([`said`]). At the end of the record the supervisor makes the sockets that continue the connections, and each
//! socket replaces its placeholder.

use core::{mem::MaybeUninit, ptr};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLONESHOT, F_GETFD, F_GETFL, F_SETFL, MAP_SHARED, O_CLOEXEC,
    O_NONBLOCK, PROT_READ, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, c_int, c_void, cmsghdr,
    epoll_event, iovec, msghdr,
};
use north_abi::{
    Call,
    handover::{ClientPosition, Ends, Entry, GO, JOIN_ANSWER, Message, Position, UpstreamPosition},
    layout::{ALL_IS_KEPT, FILE_FD, Failure, Fate, HANDOVER_FD, POSITIONS_OFFSET, SOCKET_FD},
};

use crate::{
    calls::{readiness::epoll::own_data, reading::becomes_ready},
    clock, closing,
    descriptors::{Backing, Connection, Descriptor},
    messages::say,
    places, signals,
    sys::{bytes, sys},
    wrap::{Wrap, exit},
};

/// Options that a program sets, and finds again on the socket that takes the placeholder's place: level, name.
const COPIED_OPTIONS: [(c_int, c_int); 12] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
];

/// A placeholder, with the flags that `accept4` was given.
pub(crate) fn placeholder(peer: &[u8], flags: c_int) -> i64 {
    let family = match peer.first_chunk() {
        Some(family) => u16::from_ne_bytes(*family),
        None => 0,
    };
    let kind = SOCK_STREAM | flags & (SOCK_NONBLOCK | SOCK_CLOEXEC);
    // SAFETY: a new socket.
    unsafe { sys!(SYS_socket, family, kind, 0) }
}

/// Positions of the clients, from the supervisor.
#[derive(Clone, Copy)]
pub(crate) enum Positions {
    Row(&'static [u8]),
    /// The positions are unknown: all output is kept.
    Unknown,
}

impl Positions {
    /// The row in the memory file.
    pub(crate) fn new(count: u64) -> Self {
        if count == ALL_IS_KEPT {
            return Self::Unknown;
        }
        let length = usize::try_from(count)
            .unwrap_or(0)
            .saturating_mul(Position::SIZE);
        if length == 0 {
            return Self::Row(&[]);
        }
        // SAFETY: a new mapping of our own file.
        let row = unsafe {
            sys!(
                SYS_mmap,
                places::POSITIONS,
                length,
                PROT_READ,
                MAP_SHARED,
                FILE_FD,
                POSITIONS_OFFSET
            )
        };
        let Ok(row) = usize::try_from(row) else {
            return Self::Row(&[]);
        };
        // SAFETY: mapped for good, and written before this process began.
        Self::Row(unsafe { bytes(ptr::with_exposed_provenance(row), length) })
    }

    /// Unmaps the positions.
    pub(crate) fn unmap(&mut self) {
        let row = core::mem::replace(self, Self::Row(&[]));
        if let Self::Row(row) = row
            && !row.is_empty()
        {
            // SAFETY: our mapping, and all references have ended.
            unsafe { sys!(SYS_munmap, row.as_ptr(), row.len()) };
        }
    }

    /// Received bytes of this client. `u64::MAX` for a client that is gone: no output is kept.
    pub(crate) fn of(&self, peer: &[u8], local: &[u8]) -> u64 {
        match self {
            Self::Unknown => 0,
            Self::Row(row) => Ends::from_sockaddrs(peer, local)
                .and_then(|ends| Position::find(row, &ends))
                .unwrap_or(u64::MAX),
        }
    }
}

pub(crate) fn put(entry: &Entry<'_>, said: &[u8]) {
    let header = entry.header();
    let pieces = [&header[..], said].map(|piece| iovec {
        iov_base: piece.as_ptr().cast_mut().cast(),
        iov_len: piece.len(),
    });
    // SAFETY: two pieces that live.
    let written = unsafe { sys!(SYS_writev, HANDOVER_FD, pieces.as_ptr(), 2) };
    if written != (header.len() + said.len()) as i64 {
        say(&[b"the handover file cannot be written"]);
        exit();
    }
}

/// The program writes these bytes in a replay. `connection` does not count the bytes yet.
pub(crate) fn said(connection: &Connection, written: &[u8]) {
    let known = connection.received.saturating_sub(connection.outstream);
    let known = usize::try_from(known).unwrap_or(usize::MAX);
    let Some(new) = written.get(known..).filter(|new| !new.is_empty()) else {
        return;
    };
    let entry = Entry::Output {
        connection: connection.number,
        offset: connection.outstream + known as u64,
        bytes: new,
    };
    put(&entry, new);
}

/// The program accepts the connection in a replay. Reported only if the positions of clients are unknown.
pub(crate) fn began(wrap: &mut Wrap, fd: c_int) {
    if let (Positions::Unknown, Some(connection)) =
        (wrap.positions, wrap.descriptors.connection(fd))
    {
        let entry = Entry::Began {
            connection: connection.number,
            ends: ends(connection),
        };
        put(&entry, &[]);
    }
}

pub(crate) fn ends(connection: &Connection) -> Ends {
    Ends::from_sockaddrs(connection.peer.as_bytes(), connection.local.as_bytes())
        .unwrap_or_default()
}

/// Reports the position of the connection.
pub(crate) fn report_position(process: u32, connection: &Connection, is_closed: bool) {
    if connection.is_outgoing() {
        put(&upstream_entry(process, connection, is_closed), &[]);
        return;
    }
    let position = ClientPosition {
        ends: ends(connection),
        instream: connection.instream,
        outstream: connection.outstream,
        is_shut: connection.is_shut,
        is_closed,
        which: connection.which,
    };
    put(
        &Entry::ClientPosition {
            connection: connection.number,
            process,
            position,
        },
        &[],
    );
}

/// Reports the part of the connection that this process has served.
pub(crate) fn report_served(connection: &Connection) {
    if connection.received < u64::MAX {
        let entry = Entry::Served {
            connection: connection.number,
            from: connection.since,
            to: connection.place(),
        };
        put(&entry, &[]);
    }
}

fn upstream_entry(process: u32, known: &Connection, is_closed: bool) -> Entry<'static> {
    let position = UpstreamPosition {
        serial: known.serial,
        is_local: known.is_local,
        instream: known.instream,
        outstream: known.outstream,
        is_shut: known.is_shut,
        is_closed,
    };
    Entry::UpstreamPosition {
        connection: known.number,
        process,
        position,
    }
}

/// The record has ended: the process becomes live.
#[cold]
pub(crate) fn go(wrap: &mut Wrap) {
    find_files(wrap);
    wrap.settle_passed();
    wrap.take_locks();
    wrap.let_go_of_listeners();
    wrap.page.remade.are_whole(wrap.remade.all());
    // The supervisor sends the output of the replay that clients lack.
    wrap.commit_replayed();
    wrap.clock.go_on(clock::monotonic(), clock::time_of_day());
    for (_, connection) in wrap.descriptors.connections() {
        report_position(wrap.process, connection, false);
        if connection.is_served && wrap.process != 0 && !connection.is_outgoing() {
            report_served(connection);
        }
    }
    let socket = report(wrap);
    while let Some((number, connection)) = receive(socket) {
        match wrap.descriptors.place_of(number) {
            Some(place) => install(wrap, place, connection),
            None => wrap.fail(Failure::BadRecord, Call::Accept, None),
        }
    }
    // SAFETY: the descriptor is ours.
    unsafe { sys!(SYS_close, socket) };
    wrap.may_have_opened = true;
    signals::forget_received(wrap);
    wrap.flush_pending_ipc();
    wrap.serves_on();
    if let Some(limit) = wrap.limit.take() {
        // SAFETY: a limit that lives.
        unsafe { sys!(SYS_setrlimit, libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// Reports that the handover file has the positions of all connections. Returns the socket for the answer.
pub(crate) fn report(wrap: &Wrap) -> c_int {
    wrap.page.processes.0[wrap.process as usize].unset(Fate::Replays);
    let connections = wrap.descriptors.connections().count();
    let message = Message::Replayed {
        process: wrap.process,
        connections: u32::try_from(connections).unwrap_or(u32::MAX),
    };
    send_for_answer(&message).unwrap_or_else(|| {
        say(&[b"the supervisor is gone, and the connections of the clients with it"]);
        exit();
    })
}

/// Sends a message to the supervisor, with a socket for the answer. Returns our end. `None`: the supervisor is gone.
fn send_for_answer(message: &Message) -> Option<c_int> {
    let mut ends = [-1; 2];
    // SAFETY: room on our stack.
    let paired = unsafe {
        let kind = libc::SOCK_SEQPACKET | SOCK_CLOEXEC;
        sys!(SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr())
    };
    if paired < 0 {
        return None;
    }
    let is_sent = send(message, Some(ends[1]), 0);
    let [ours, theirs] = ends;
    // SAFETY: both ends are ours.
    unsafe { sys!(SYS_close, theirs) };
    if !is_sent {
        // SAFETY: this end is ours, too.
        unsafe { sys!(SYS_close, ours) };
    }
    is_sent.then_some(ours)
}

/// Answer of the supervisor to [`Message::Joins`].
pub(crate) enum Answer {
    /// The connection has this number in the data plane from here on.
    Joined(u64),
    /// The connection stays as before. A supervisor that died before the question has not touched the connection.
    Stays,
    /// The supervisor has died, perhaps with the socket in repair: the connection must not be used any more.
    Lost,
}

/// Asks the supervisor, and waits for the answer without a limit.
pub(crate) fn ask(message: &Message) -> Answer {
    let Some(socket) = send_for_answer(message) else {
        return Answer::Stays;
    };
    let mut answer = [0u8; JOIN_ANSWER];
    let received = loop {
        let at = answer.as_mut_ptr();
        // SAFETY: room on our stack.
        let received = unsafe { sys!(SYS_recvfrom, socket, at, JOIN_ANSWER, 0, 0, 0) };
        if received != -i64::from(libc::EINTR) {
            break received;
        }
    };
    // SAFETY: the descriptor is ours.
    unsafe { sys!(SYS_close, socket) };
    match u64::from_le_bytes(answer) {
        _ if received != JOIN_ANSWER as i64 => Answer::Lost,
        0 => Answer::Stays,
        flow => Answer::Joined(flow),
    }
}

/// Asks the supervisor for a descriptor, and waits for the answer. `None`: the supervisor does not have the
/// descriptor.
pub(crate) fn ask_for_file(message: &Message) -> Option<c_int> {
    let socket = send_for_answer(message)?;
    let (length, descriptor) = received(socket, &mut [0; 4]);
    // SAFETY: the descriptor is ours.
    unsafe { sys!(SYS_close, socket) };
    descriptor.filter(|_| length == 1)
}

/// As [`ask_for_file`], with a wait of at most `within` nanoseconds.
pub(crate) fn ask_soon(message: &Message, within: u64) -> Option<c_int> {
    let socket = send_for_answer(message)?;
    let (length, descriptor) = match becomes_ready(socket, libc::POLLIN, within) {
        true => received(socket, &mut [0; 4]),
        false => (0, None),
    };
    // SAFETY: the descriptor is ours.
    unsafe { sys!(SYS_close, socket) };
    descriptor.filter(|_| length == 1)
}

/// The process has ended in its replay, as recorded: no connection is left, and no answer is needed.
pub(crate) fn ended(wrap: &mut Wrap) {
    wrap.descriptors.forget();
    report(wrap);
}

/// Fails if the process would continue with a file that is gone. Waits for a helper that is about to close such a
/// file.
pub(crate) fn find_files(wrap: &mut Wrap) {
    const STALE_FILE_ATTEMPTS_MAX: usize = 100;
    for _ in 0..STALE_FILE_ATTEMPTS_MAX {
        let mut files = wrap.descriptors.without_file();
        if !files.any(|(fd, backing)| is_open_still(fd, backing)) {
            return;
        }
        clock::sleep(10_000_000);
    }
    say(&[b"an open file of the server was removed or changed"]);
    wrap.fail(Failure::OtherFile, Call::File, None);
}

/// Whether the descriptor is still open: with the changed file, or with the substitute of a file that is gone.
fn is_open_still(fd: c_int, backing: Backing) -> bool {
    if closing::is_closed(fd) {
        return false;
    }
    if backing == Backing::Changed {
        // SAFETY: no memory is involved.
        return unsafe { sys!(SYS_fcntl, fd, F_GETFD) } >= 0;
    }
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: memory on our stack, which is read only after success.
    unsafe { sys!(SYS_fstat, fd, about.as_mut_ptr()) == 0 && about.assume_init().st_nlink == 0 }
}

/// A descriptor beside a message.
#[repr(C, align(8))]
struct Control {
    header: cmsghdr,
    fd: c_int,
}

/// Sends a message to the supervisor, with this descriptor, without a wait. `false`: the supervisor does not take the
/// message.
pub(crate) fn tell(message: &Message, beside: Option<c_int>) -> bool {
    send(message, beside, libc::MSG_DONTWAIT)
}

pub(crate) fn send(message: &Message, beside: Option<c_int>, flags: c_int) -> bool {
    let bytes = message.to_bytes();
    let mut piece = iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let control = Control {
        header: cmsghdr {
            cmsg_len: size_of::<cmsghdr>() + size_of::<c_int>(),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        },
        fd: beside.unwrap_or(-1),
    };
    // SAFETY: all zeros is an empty message.
    let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    if beside.is_some() {
        message.msg_control = (&raw const control).cast_mut().cast();
        message.msg_controllen = size_of::<Control>();
    }
    let flags = flags | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: the message and its buffers are on our stack.
        let sent = unsafe { sys!(SYS_sendmsg, SOCKET_FD, &raw const message, flags) };
        if sent != -i64::from(libc::EINTR) {
            return sent == bytes.len() as i64;
        }
    }
}

/// The number of a connection, and its socket; `None`: all sockets have arrived. If the supervisor dies first, the
/// process ends, and another supervisor starts the next incarnation.
fn receive(from: c_int) -> Option<(u32, c_int)> {
    let mut place = [0u8; 4];
    match received(from, &mut place) {
        (4, Some(socket)) => Some((u32::from_le_bytes(place), socket)),
        (1, _) if place[0] == GO => None,
        _ => {
            say(&[b"the supervisor has not handed the clients' connections over"]);
            exit();
        }
    }
}

/// Length of the received message, and its descriptor.
fn received(from: c_int, place: &mut [u8; 4]) -> (i64, Option<c_int>) {
    let mut control = MaybeUninit::<Control>::zeroed();
    let mut piece = iovec {
        iov_base: place.as_mut_ptr().cast(),
        iov_len: place.len(),
    };
    let mut message = MaybeUninit::<msghdr>::zeroed();
    // SAFETY: all zeros is an empty message.
    let message = unsafe { message.assume_init_mut() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    loop {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of::<Control>();
        // SAFETY: the message and its buffers are on our stack.
        let length = unsafe { sys!(SYS_recvmsg, from, &raw mut *message, libc::MSG_CMSG_CLOEXEC) };
        if length == -i64::from(libc::EINTR) {
            continue;
        }
        // SAFETY: zeroed, or written by the kernel.
        let control = unsafe { control.assume_init_ref() };
        let has_socket = message.msg_controllen >= size_of::<cmsghdr>() + size_of::<c_int>()
            && control.header.cmsg_type == libc::SCM_RIGHTS;
        return (length, has_socket.then_some(control.fd));
    }
}

/// The socket takes the place of every descriptor that is this connection.
fn install(wrap: &mut Wrap, place: u32, socket: c_int) {
    let mut is_first = true;
    for fd in wrap.descriptors.all_of(place) {
        let descriptor = wrap.descriptors.get(fd);
        if !descriptor.is_connection(place) {
            continue;
        }
        if is_first {
            copy_options(fd, socket);
            is_first = false;
        }
        replace(wrap, fd, &descriptor, socket);
        if let Some(connection) = wrap.descriptors.connection(fd) {
            connection.is_held = connection.is_outgoing() && !connection.is_local;
        }
    }
    // SAFETY: the descriptor is ours.
    unsafe { sys!(SYS_close, socket) };
}

/// Replaces an unused socket of the program by this socket, under the same number.
pub(crate) fn put_in_place(wrap: &mut Wrap, fd: c_int, socket: c_int) {
    let descriptor = wrap.descriptors.get(fd);
    copy_options(fd, socket);
    replace(wrap, fd, &descriptor, socket);
}

fn replace(wrap: &mut Wrap, fd: c_int, descriptor: &Descriptor, socket: c_int) {
    // The instance is the parent's. The parent has the connection, too, and may have ended its interest.
    let epoll = descriptor.epoll.checked_sub(1);
    let epoll = epoll.filter(|_| !descriptor.is_watched_by_parent);
    // A child with the same placeholder would keep the placeholder watched under this number, and ready for ever.
    if let Some(epoll) = epoll {
        // SAFETY: no memory is involved.
        unsafe { sys!(SYS_epoll_ctl, epoll, EPOLL_CTL_DEL, fd, 0) };
    }
    // SAFETY: descriptors of ours; the call closes the placeholder.
    let replaced = unsafe {
        let flags = sys!(SYS_fcntl, fd, F_GETFD);
        let closes = flags & i64::from(libc::FD_CLOEXEC) != 0;
        sys!(SYS_dup3, socket, fd, if closes { O_CLOEXEC } else { 0 })
    };
    if replaced < 0 {
        wrap.fail(Failure::DescriptorTaken, Call::Accept, None);
    }
    if let Some(epoll) = epoll {
        watch(fd, epoll, descriptor);
    }
}

fn copy_options(from: c_int, to: c_int) {
    for (level, name) in COPIED_OPTIONS {
        let mut value = [0u64; 4];
        let mut length: u32 = 32;
        // SAFETY: the value has room for any of these.
        unsafe {
            let got = sys!(
                SYS_getsockopt,
                from,
                level,
                name,
                value.as_mut_ptr(),
                &raw mut length
            );
            if got == 0 {
                sys!(SYS_setsockopt, to, level, name, value.as_ptr(), length);
            }
        }
    }
    // SAFETY: no memory is involved.
    unsafe {
        let flags = sys!(SYS_fcntl, from, F_GETFL);
        if flags >= 0 {
            sys!(SYS_fcntl, to, F_SETFL, flags & i64::from(O_NONBLOCK));
        }
    }
}

fn watch(fd: c_int, epoll: u32, descriptor: &Descriptor) {
    let mut event = epoll_event {
        events: descriptor.events,
        u64: own_data(fd),
    };
    if descriptor.is_spent {
        event.events = EPOLLONESHOT.cast_unsigned(); // the program has had its one event
    }
    let at: *const c_void = (&raw const event).cast();
    // SAFETY: an event on our stack.
    unsafe { sys!(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, at) };
}
