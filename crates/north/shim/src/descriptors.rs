//! The descriptors of this process, as far as the shim must know them.

mod connection;

use core::{cell::UnsafeCell, mem::MaybeUninit};

use libc::c_int;
use north_abi::{
    Which,
    handover::UpstreamPosition,
    layout::{THREADS, THREADS_FD},
};

use crate::{read_cursors::Retired, sys::sys};

pub(crate) use connection::{Address, Connection, KEPT_OPTIONS};

/// Tracked descriptors; connections beyond are refused.
pub(crate) const DESCRIPTORS_MAX: usize = 1 << 16;
/// Connections of a process at once, without duplicates of descriptors.
pub(crate) const CONNECTIONS_MAX: usize = 1 << 16;

/// Channels of a session that are polled for passed connections.
const CHANNELS_MAX: usize = 64;

/// Inode of the file; 0: no file.
pub(crate) fn inode(fd: c_int) -> u64 {
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: memory on our stack, which is read only after success.
    unsafe {
        match sys!(SYS_fstat, fd, about.as_mut_ptr()) {
            0 => about.assume_init().st_ino,
            _ => 0,
        }
    }
}

/// Duplicates the descriptor to a number above the program's descriptors; `None`: no such number is free.
pub(crate) fn hidden(fd: c_int) -> Option<c_int> {
    hidden_from(fd, 0)
}

/// As [`hidden`], to a number of at least `least`.
pub(crate) fn hidden_from(fd: c_int, least: c_int) -> Option<c_int> {
    let at = least.max(THREADS_FD + THREADS as c_int);
    // SAFETY: no memory is involved.
    let hidden = unsafe { sys!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, at) };
    c_int::try_from(hidden).ok().filter(|fd| *fd >= 0)
}

/// Kind of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Unrecorded or closed.
    #[default]
    Other,
    /// A socket that listens to clients.
    Listener,
    /// A client's connection; `connection` is the place among the connections.
    Connection,
    /// An upstream connection; `connection` is the place among the connections.
    Outgoing,
    /// A socket of datagrams to and from anywhere.
    Datagrams,
    /// Input that the program does not determine: a pipe, `/dev/urandom`, a file below `/proc`.
    Input,
    /// A regular file that the program has opened.
    File,
}

/// State in a replay of a file that was opened for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub(crate) enum Backing {
    /// The original file, with all writes.
    #[default]
    Written,
    /// A recreated file in place of a missing file: the writes are repeated.
    Remade,
    /// Another file that has the name now: appends go to its end.
    Successor,
    /// A file for reading that may have changed: reads are compared, and unread parts are not trusted.
    Changed,
    /// No file.
    Nothing,
}

impl Kind {
    /// Whether the kind has a place among the connections.
    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Self::Connection | Self::Outgoing)
    }
}

/// One descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Descriptor {
    pub(crate) kind: Kind,
    /// Which connection.
    pub(crate) connection: u32,
    /// Interest of the program in epoll: the instance (its descriptor plus 1, 0: none), events, data.
    pub(crate) epoll: u32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// The interest was for one event (EPOLLONESHOT), and the event has come.
    pub(crate) is_spent: bool,
    /// The parent set the interest before the fork. The instance is the parent's, which may have ended the interest.
    pub(crate) is_watched_by_parent: bool,
    /// A file that is only appended to.
    pub(crate) appends: bool,
    /// A file that is read and written: bytes of an earlier read may be overwritten.
    pub(crate) is_in_place: bool,
    pub(crate) backing: Backing,
    /// End of such a file, as far as this process knows.
    pub(crate) end: u64,
    /// Inode at the first open(2).
    pub(crate) inode: u64,
    /// An end of a pipe or of a pair of sockets.
    is_end: bool,
    /// Other processes have that, too.
    pub(crate) is_channel: bool,
    /// The process that made the channel ([`crate::ipc_replay`]); 0: the main process, or the channel is not
    /// replayed.
    pub(crate) maker: u32,
    /// Last modification, at open(2), of a file that is only read.
    pub(crate) modified: u64,
    /// A socket whose port the kernel had chosen: the port of this incarnation differs.
    pub(crate) lacks_port: bool,
    /// The other end of a pipe (its descriptor plus 1), as long as this process has both ends; 0: none.
    partner: u32,
}

impl Descriptor {
    const OTHER: Self = Self {
        kind: Kind::Other,
        connection: 0,
        epoll: 0,
        events: 0,
        data: 0,
        is_spent: false,
        is_watched_by_parent: false,
        appends: false,
        is_in_place: false,
        backing: Backing::Written,
        end: 0,
        inode: 0,
        is_end: false,
        is_channel: false,
        maker: 0,
        modified: 0,
        lacks_port: false,
        partner: 0,
    };

    /// Whether this process has both ends, and reads its own writes.
    pub(crate) fn is_paired(&self) -> bool {
        self.partner != 0
    }

    /// Whether the descriptor is both ends (`eventfd`).
    pub(crate) fn is_counter(&self, own: c_int) -> bool {
        self.partner == own.cast_unsigned() + 1
    }

    /// Whether the descriptor is the connection at this place.
    pub(crate) fn is_connection(&self, place: u32) -> bool {
        self.kind.is_stream() && self.connection == place
    }
}

/// All descriptors. Unused memory is never touched.
pub(crate) struct Descriptors {
    all: [Descriptor; DESCRIPTORS_MAX],
    connections: [Connection; CONNECTIONS_MAX],
    /// All places from here on were never used.
    unused: u32,
    /// The first free place below `unused`, plus 1; 0: none. Each free place names the next.
    free: u32,
    /// Number of connections that the program has opened.
    opened: u64,
    /// Read cursors of closed connections.
    pub(crate) retired: Retired,
}

struct Static(UnsafeCell<Descriptors>);
// SAFETY: only the process's first thread refers to the value (`crate::wrap::with`).
unsafe impl Sync for Static {}

static TABLE: Static = Static(UnsafeCell::new(Descriptors {
    all: [Descriptor::OTHER; DESCRIPTORS_MAX],
    connections: [Connection::FREE; CONNECTIONS_MAX],
    unused: 0,
    free: 0,
    opened: 0,
    retired: Retired::NONE,
}));

/// The table.
///
/// # Safety
/// Once, by the process's first thread.
pub(crate) unsafe fn table() -> &'static mut Descriptors {
    // SAFETY: by the caller.
    unsafe { &mut *TABLE.0.get() }
}

/// Kind of the descriptor, for any thread; may change a moment later.
pub(crate) fn kind_of(fd: c_int) -> Kind {
    let Some(index) = usize::try_from(fd)
        .ok()
        .filter(|index| *index < DESCRIPTORS_MAX)
    else {
        return Kind::Other;
    };
    // SAFETY: in bounds; a single byte, which is read whole.
    unsafe { core::ptr::addr_of!((*TABLE.0.get()).all[index].kind).read_volatile() }
}

/// Interest of a descriptor in epoll, for any thread.
pub(crate) struct Watched {
    /// The instance and 1; 0: none.
    epoll: u32,
    data: u64,
}

impl Watched {
    pub(crate) fn of(fd: c_int) -> Self {
        let index = usize::try_from(fd)
            .ok()
            .filter(|index| *index < DESCRIPTORS_MAX);
        let Some(index) = index else {
            return Self { epoll: 0, data: 0 };
        };
        // SAFETY: in bounds; numbers, each of which is read whole.
        unsafe {
            let one = core::ptr::addr_of!((*TABLE.0.get()).all[index]);
            let data = core::ptr::addr_of!((*one).data).read_volatile();
            let epoll = core::ptr::addr_of!((*one).epoll).read_volatile();
            Self { epoll, data }
        }
    }

    pub(crate) fn epoll(&self) -> Option<c_int> {
        c_int::try_from(self.epoll.checked_sub(1)?).ok()
    }

    pub(crate) fn is_in(&self, epoll: c_int) -> bool {
        self.epoll() == Some(epoll)
    }

    /// The program's own data, if this instance watches the descriptor.
    pub(crate) fn data_in(&self, epoll: c_int) -> Option<u64> {
        self.is_in(epoll).then_some(self.data)
    }
}

impl Descriptors {
    pub(crate) fn get(&self, fd: c_int) -> Descriptor {
        let index = usize::try_from(fd).unwrap_or(DESCRIPTORS_MAX);
        self.all.get(index).copied().unwrap_or_default()
    }

    /// Whether the shim knows the descriptor.
    pub(crate) fn is_known(&self, fd: c_int) -> bool {
        self.get(fd) != Descriptor::default()
    }

    pub(crate) fn entry(&mut self, fd: c_int) -> Option<&mut Descriptor> {
        self.all.get_mut(usize::try_from(fd).ok()?)
    }

    /// A descriptor of the recreated file in place of this inode.
    pub(crate) fn remaking(&self, inode: u64) -> Option<c_int> {
        let is = |one: &Descriptor| one.backing == Backing::Remade && one.inode == inode;
        let fd = self.all.iter().position(is)?;
        c_int::try_from(fd).ok()
    }

    /// Descriptors of files that a replay lacks, or that have changed.
    pub(crate) fn without_file(&self) -> impl Iterator<Item = (c_int, Backing)> {
        let all = (0..).zip(self.all.iter().map(|one| one.backing));
        all.filter(|(_, backing)| matches!(backing, Backing::Nothing | Backing::Changed))
    }

    /// Descriptors of regular files.
    pub(crate) fn all_files(&self) -> impl Iterator<Item = c_int> {
        let all = (0..).zip(self.all.iter());
        all.filter_map(|(fd, one)| (one.kind == Kind::File).then_some(fd))
    }

    /// Descriptors of regular files, mutable.
    pub(crate) fn files_mut(&mut self) -> impl Iterator<Item = (c_int, &mut Descriptor)> {
        let all = (0..).zip(&mut self.all);
        all.filter(|(_, one)| one.kind == Kind::File)
    }

    /// Descriptors of files that a replay has recreated.
    pub(crate) fn remade(&self) -> impl Iterator<Item = c_int> {
        let all = (0..).zip(self.all.iter().map(|one| one.backing));
        all.filter_map(|(fd, backing)| (backing == Backing::Remade).then_some(fd))
    }

    pub(crate) fn set_kind(&mut self, fd: c_int, kind: Kind) {
        self.close(fd);
        if let Some(entry) = self.entry(fd) {
            entry.kind = kind;
        }
    }

    /// The connection that a descriptor is.
    pub(crate) fn connection(&mut self, fd: c_int) -> Option<&mut Connection> {
        let descriptor = self.get(fd);
        descriptor
            .kind
            .is_stream()
            .then(|| self.connections.get_mut(descriptor.connection as usize))?
    }

    /// Adds an accepted connection. `false`: the table is full.
    pub(crate) fn accept(
        &mut self,
        fd: c_int,
        number: u32,
        peer: Address,
        local: Address,
        which: Which,
    ) -> bool {
        self.close(fd);
        let connection = Connection {
            number,
            peer,
            local,
            which,
            ..Connection::FREE
        };
        self.add(fd, Kind::Connection, connection)
    }

    /// Serial number of the next upstream connection.
    pub(crate) fn next_serial(&self, process: u32) -> u64 {
        UpstreamPosition::serial_of(process, self.opened + 1)
    }

    /// Adds an upstream connection. The interest in epoll stays. `false`: the table is full.
    pub(crate) fn open(&mut self, fd: c_int, number: u32, process: u32, is_local: bool) -> bool {
        let connection = Connection {
            number,
            serial: self.next_serial(process),
            is_local,
            received: u64::MAX,
            ..Connection::FREE
        };
        let has_room = self.add(fd, Kind::Outgoing, connection);
        self.opened += u64::from(has_room);
        has_room
    }

    /// Adds an upstream connection that another process has opened and passed on. `false`: the table is full.
    pub(crate) fn take_over(&mut self, fd: c_int, number: u32, serial: u64, is_held: bool) -> bool {
        self.close(fd);
        let connection = Connection {
            number,
            serial,
            is_held,
            received: u64::MAX,
            ..Connection::FREE
        };
        self.add(fd, Kind::Outgoing, connection)
    }

    /// Makes the descriptor the only descriptor of this connection. `false`: the table is full.
    fn add(&mut self, fd: c_int, kind: Kind, connection: Connection) -> bool {
        let Some(place) = self.free_place() else {
            return false;
        };
        let Some(entry) = self.entry(fd) else {
            return false;
        };
        entry.kind = kind;
        entry.connection = place;
        self.connections[place as usize] = Connection {
            references: 1,
            fd,
            ..connection
        };
        true
    }

    /// The descriptor is no longer connected. The interest in epoll stays.
    pub(crate) fn disconnect(&mut self, fd: c_int) {
        self.leave(fd);
        if let Some(entry) = self.entry(fd) {
            entry.kind = Kind::Other;
        }
    }

    fn free_place(&mut self) -> Option<u32> {
        if let Some(place) = self.free.checked_sub(1) {
            self.free = self.connections.get(place as usize)?.next_free;
            return Some(place);
        }
        let place = self.unused;
        self.connections.get(place as usize)?;
        self.unused += 1;
        Some(place)
    }

    /// `to` becomes a copy of `from`.
    pub(crate) fn duplicate(&mut self, from: c_int, to: c_int) {
        self.close(to);
        let original = Descriptor {
            epoll: 0,
            partner: 0,
            ..self.get(from)
        };
        let Some(entry) = self.entry(to) else { return };
        *entry = original;
        if let Some(connection) = self.connection(to) {
            connection.references += 1;
        }
    }

    /// The connection moves from the descriptor `from` to `to`.
    pub(crate) fn moves(&mut self, from: c_int, to: c_int) {
        self.duplicate(from, to);
        self.close(from);
        if let Some(connection) = self.connection(to) {
            connection.fd = to;
        }
    }

    /// The descriptor is closed.
    pub(crate) fn close(&mut self, fd: c_int) {
        self.leave(fd);
        let partner = self.get(fd).partner;
        for end in [fd.cast_unsigned().wrapping_add(1), partner] {
            if let Some(entry) = self.entry(end.wrapping_sub(1).cast_signed()) {
                entry.partner = 0;
            }
        }
        if let Some(entry) = self.entry(fd) {
            *entry = Descriptor::default();
        }
    }

    /// Detaches the descriptor from its connection.
    fn leave(&mut self, fd: c_int) {
        let place = self.get(fd).connection;
        let free = self.free;
        if let Some(connection) = self.connection(fd) {
            connection.references = connection.references.saturating_sub(1);
            if connection.references == 0 {
                let note = core::mem::take(&mut connection.cursor);
                connection.next_free = free;
                self.free = place + 1;
                self.retired.push(note);
            }
        }
    }

    /// Registers the two ends of a pipe; a single descriptor can be both.
    pub(crate) fn pair(&mut self, one: c_int, other: c_int) {
        for (end, partner) in [(one, other), (other, one)] {
            if let Some(entry) = self.entry(end) {
                entry.partner = partner.cast_unsigned() + 1;
                entry.is_end = true;
            }
        }
    }

    /// The descriptors among which all are that are this connection.
    pub(crate) fn all_of(&self, place: u32) -> core::ops::Range<c_int> {
        match self.connections.get(place as usize) {
            Some(connection)
                if connection.references == 1 && self.get(connection.fd).is_connection(place) =>
            {
                connection.fd..connection.fd + 1
            }
            _ => 0..DESCRIPTORS_MAX as c_int,
        }
    }

    /// Open connections with their places.
    pub(crate) fn connections(&self) -> impl Iterator<Item = (u32, &Connection)> {
        let used = &self.connections[..self.unused as usize];
        let numbered = (0u32..).zip(used);
        numbered.filter(|(_, connection)| connection.references > 0)
    }

    /// Open connections, mutable.
    pub(crate) fn connections_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        let used = &mut self.connections[..self.unused as usize];
        used.iter_mut()
            .filter(|connection| connection.references > 0)
    }

    /// No connection is open any more.
    pub(crate) fn forget(&mut self) {
        for connection in self.connections_mut() {
            connection.references = 0;
        }
    }

    /// The place of the connection with this number.
    pub(crate) fn place_of(&self, number: u32) -> Option<u32> {
        let mut all = self.connections();
        all.find(|(_, connection)| connection.number == number)
            .map(|(place, _)| place)
    }

    /// Channels that other processes have, too, each with its maker.
    pub(crate) fn makers(&self) -> impl Iterator<Item = (c_int, u32)> {
        let all = (0..)
            .zip(&self.all)
            .filter(|(_, one)| one.is_channel && one.maker != 0);
        all.map(|(fd, one)| (fd, one.maker))
    }

    /// Descriptors of the listeners for clients.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = c_int> {
        let all = (0..).zip(&self.all);
        all.filter(|(_, one)| one.kind == Kind::Listener)
            .map(|(fd, _)| fd)
    }

    /// Descriptors of channels to other processes of the session.
    pub(crate) fn ways(&self) -> [c_int; CHANNELS_MAX] {
        let mut ways = [-1; CHANNELS_MAX];
        let all = self.makers().filter(|(fd, _)| !self.get(*fd).is_paired());
        for (way, (fd, _)) in ways.iter_mut().zip(all) {
            *way = fd;
        }
        ways
    }

    /// This process is a new child: its parent owns the interests in epoll.
    pub(crate) fn are_watched_by_parent(&mut self) {
        for entry in &mut self.all {
            entry.is_watched_by_parent |= entry.epoll != 0;
        }
    }

    /// Another process has all of this, too.
    pub(crate) fn are_shared(&mut self) {
        for connection in self.connections_mut() {
            connection.is_shared = true;
        }
        for entry in &mut self.all {
            entry.is_channel |= entry.is_end;
        }
    }
}
