//! A room, from outside.

use std::{
    ffi::{OsStr, OsString},
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
    thread,
};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use supervise::{Command, Pid, Server, SpawnError};

use crate::{Criu, room};

/// Most bytes of a message.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Most descriptors beside one.
const MAX_DESCRIPTORS: usize = 8;

/// What a room says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// The process that was made from an image goes on.
    Resumed,
    /// An image of the rehearsal is made, and it has ended.
    Dumped,
    /// It is of no use any more, and why.
    Failed(String),
}

/// What a room is asked.
#[derive(Debug)]
pub(crate) enum Asked {
    /// To begin; the process is given these.
    Begin(Vec<OwnedFd>),
    /// To let the process go on.
    Go,
    /// To make an image, in this directory.
    Dump(PathBuf),
}

/// Where the process of a room comes from.
#[derive(Debug, Clone, Copy)]
pub enum Way<'a> {
    /// A rehearsal of this command, from the beginning.
    Command(&'a [OsString]),
    /// The image with this number, in this directory, as a rehearsal.
    Image(u64, &'a Path),
    /// The same as the service: it waits until it [may](Room::go).
    Service(u64, &'a Path),
}

/// A room. A rehearsal's ends when this is dropped; one that serves goes on.
#[derive(Debug)]
pub struct Room {
    control: OwnedFd,
    /// Its first process, unless somebody else looks after it.
    first: Option<Server>,
}

/// Why there is no room.
#[derive(Debug, thiserror::Error)]
pub enum RoomError {
    /// The system refuses.
    #[error("a room for a rehearsal cannot be made: {0}")]
    Io(#[from] io::Error),
    /// Its first process cannot be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

impl Room {
    /// Open one. The process is given `rights`; with none it is only to be seen that it can be made.
    ///
    /// # Errors
    /// Something of it cannot be had.
    pub fn open(criu: &Criu, way: Way<'_>, rights: &[BorrowedFd<'_>]) -> Result<Self, RoomError> {
        let flags = SocketFlags::CLOEXEC;
        let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(io::Error::from)?;
        let words = words(criu, way)?;
        let kind = match way {
            Way::Service(..) => supervise::Room::Open,
            Way::Command(_) | Way::Image(..) => supervise::Room::Closed,
        };
        // Not in the service's cgroup: CRIU kills helpers of its own.
        let command = Command::new(words).in_room(kind);
        let first = command.start_beside(&[(theirs.as_fd(), 0)])?;
        let first = Some(first);
        let room = Self { control, first };
        send_rights(room.control.as_fd(), BEGIN_MESSAGE, rights)?;
        Ok(room)
    }

    /// Have an image of the rehearsal, which has stopped, made in this directory.
    ///
    /// # Errors
    /// The room is gone.
    pub fn dump(&self, into: &Path) -> io::Result<()> {
        let message = [DUMP_MESSAGE, into.as_os_str().as_bytes()].concat();
        send_rights(self.control.as_fd(), &message, &[])
    }

    /// The process that is to be the service goes on.
    ///
    /// # Errors
    /// The room is gone.
    pub fn go(&self) -> io::Result<()> {
        send_rights(self.control.as_fd(), GO_MESSAGE, &[])
    }

    /// What it has said, without waiting for it; `None`: nothing. With who goes on, if one does: the number that its
    /// process has here.
    ///
    /// # Errors
    /// It is gone.
    pub fn said(&mut self) -> io::Result<Option<(Said, Option<Pid>)>> {
        let (bytes, rights) = match receive(self.control.as_fd(), RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            received => received?,
        };
        let said = match bytes.split_first_chunk() {
            Some((RESUMED_REPLY, _)) => Said::Resumed,
            Some((DUMPED_REPLY, _)) => Said::Dumped,
            Some((FAILED_REPLY, why)) => Said::Failed(String::from_utf8_lossy(why).into_owned()),
            _ => Said::Failed("its first process has ended".to_owned()),
        };
        let who = rights
            .first()
            .map(|stream| getsockopt(stream, PeerCredentials));
        let pid = who.transpose()?.and_then(|who| Pid::from_raw(who.pid()));
        Ok(Some((said, pid)))
    }

    /// Its first process, for somebody else to look after.
    pub fn first(&mut self) -> Option<Server> {
        self.first.take()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(mut first) = self.first.take() {
            // All in there ends with it, which takes the longer the larger it is.
            let buried = thread::Builder::new().spawn(move || first.end());
            drop(buried);
        }
    }
}

/// Readable when it has said something.
impl AsFd for Room {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

const BEGIN_MESSAGE: &[u8] = b"B";
const DUMP_MESSAGE: &[u8] = b"D";
const GO_MESSAGE: &[u8] = b"G";
const RESUMED_REPLY: &[u8; 1] = b"R";
const DUMPED_REPLY: &[u8; 1] = b"D";
const FAILED_REPLY: &[u8; 1] = b"F";

/// What our binary is told.
fn words(criu: &Criu, way: Way<'_>) -> io::Result<Vec<OsString>> {
    let mut words = vec![std::env::current_exe()?.into_os_string()];
    let mut add = |one: &[&OsStr]| words.extend(one.iter().map(OsString::from));
    add(&[room::VERB.as_ref(), "--criu".as_ref(), criu.path().as_ref()]);
    match way {
        Way::Command(command) => {
            add(&["--".as_ref()]);
            words.extend(command.iter().cloned());
        }
        Way::Image(number, directory) | Way::Service(number, directory) => {
            let number = number.to_string();
            add(&["--number".as_ref(), number.as_ref()]);
            add(&["--image".as_ref(), directory.as_ref()]);
        }
    }
    if let Way::Service(..) = way {
        words.push("--serves".into());
    }
    Ok(words)
}

pub(crate) fn send_rights(
    to: BorrowedFd<'_>,
    bytes: &[u8],
    rights: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !rights.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(rights));
    }
    let pieces = [IoSlice::new(bytes)];
    sendmsg(to, &pieces, &mut beside, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(from: BorrowedFd<'_>, flags: RecvFlags) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut beside, flags)?;
    bytes.truncate(received.bytes);
    let rights = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok((bytes, rights.flatten().collect()))
}

/// What the supervisor wants; `None`: it is gone.
pub(crate) fn hear(from: BorrowedFd<'_>) -> io::Result<Option<Asked>> {
    let (bytes, rights) = receive(from, RecvFlags::empty())?;
    Ok(match bytes.split_at_checked(1) {
        Some((BEGIN_MESSAGE, _)) => Some(Asked::Begin(rights)),
        Some((GO_MESSAGE, _)) => Some(Asked::Go),
        Some((DUMP_MESSAGE, path)) => Some(Asked::Dump(OsString::from_vec(path.to_vec()).into())),
        _ => None,
    })
}

pub(crate) fn say(to: BorrowedFd<'_>, said: &Said, rights: &[BorrowedFd<'_>]) -> io::Result<()> {
    let (kind, more) = match said {
        Said::Resumed => (RESUMED_REPLY, ""),
        Said::Dumped => (DUMPED_REPLY, ""),
        Said::Failed(why) => (FAILED_REPLY, why.as_str()),
    };
    let more = &more.as_bytes()[..more.len().min(MAX_MESSAGE_BYTES - 1)];
    send_rights(to, &[&kind[..], more].concat(), rights)
}
