//! The supervisor's end of a sandbox.

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

use crate::{Criu, sandbox};

/// Most bytes of a message.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Most descriptors beside a message.
const MAX_DESCRIPTORS: usize = 8;

/// A report of the first process of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxReport {
    /// The restored process runs.
    Resumed,
    /// The image of the shadow replay is complete, and the replay has ended.
    Dumped,
    /// The sandbox is useless; the reason.
    Failed(String),
}

/// A request to the first process of a sandbox.
#[derive(Debug)]
pub(crate) enum SandboxRequest {
    /// Begin, with descriptors for the process.
    Begin(Vec<OwnedFd>),
    /// Let the restored process continue.
    Go,
    /// Make an image, in this directory.
    Dump(PathBuf),
}

/// Origin of the process in a sandbox.
#[derive(Debug, Clone, Copy)]
pub enum ProcessSource<'a> {
    /// A shadow replay of this command, from the beginning.
    Command(&'a [OsString]),
    /// The image with this number, in this directory, as a shadow replay.
    Image(u64, &'a Path),
    /// The same as the service: the process waits for [`Sandbox::go`].
    Service(u64, &'a Path),
}

/// A sandbox. The sandbox of a shadow replay ends with this value; a serving sandbox continues.
#[derive(Debug)]
pub struct Sandbox {
    control: OwnedFd,
    /// The first process, unless the caller has taken it.
    first: Option<Server>,
}

/// A sandbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A system call failed.
    #[error("a sandbox for a shadow replay cannot be made: {0}")]
    Io(#[from] io::Error),
    /// The first process did not start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

impl Sandbox {
    /// Opens a sandbox. The process gets the descriptors `rights`; without descriptors the sandbox only tries the
    /// restore.
    ///
    /// # Errors
    /// The socket pair or the first process cannot be made.
    pub fn open(
        criu: &Criu,
        way: ProcessSource<'_>,
        rights: &[BorrowedFd<'_>],
    ) -> Result<Self, SandboxError> {
        let flags = SocketFlags::CLOEXEC;
        let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(io::Error::from)?;
        let words = words(criu, way)?;
        let kind = match way {
            ProcessSource::Service(..) => supervise::Isolation::Open,
            ProcessSource::Command(_) | ProcessSource::Image(..) => supervise::Isolation::Closed,
        };
        // Not in the service's cgroup, because CRIU kills its own helpers.
        let command = Command::new(words).isolated(kind);
        let first = command.start_beside(&[(theirs.as_fd(), 0)])?;
        let first = Some(first);
        let sandbox = Self { control, first };
        send_rights(sandbox.control.as_fd(), BEGIN_MESSAGE, rights)?;
        Ok(sandbox)
    }

    /// Requests an image of the stopped shadow replay, in this directory.
    ///
    /// # Errors
    /// The sandbox is dead.
    pub fn dump(&self, into: &Path) -> io::Result<()> {
        let message = [DUMP_MESSAGE, into.as_os_str().as_bytes()].concat();
        send_rights(self.control.as_fd(), &message, &[])
    }

    /// Lets the process that becomes the service continue.
    ///
    /// # Errors
    /// The sandbox is dead.
    pub fn go(&self) -> io::Result<()> {
        send_rights(self.control.as_fd(), GO_MESSAGE, &[])
    }

    /// The next report, without waiting; `None`: no report. With [`SandboxReport::Resumed`] comes the number of the
    /// restored process in this PID namespace.
    ///
    /// # Errors
    /// The sandbox is dead.
    pub fn report(&mut self) -> io::Result<Option<(SandboxReport, Option<Pid>)>> {
        let (bytes, rights) = match receive(self.control.as_fd(), RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            received => received?,
        };
        let said = match bytes.split_first_chunk() {
            Some((RESUMED_REPLY, _)) => SandboxReport::Resumed,
            Some((DUMPED_REPLY, _)) => SandboxReport::Dumped,
            Some((FAILED_REPLY, why)) => {
                SandboxReport::Failed(String::from_utf8_lossy(why).into_owned())
            }
            _ => SandboxReport::Failed("its first process has ended".to_owned()),
        };
        let who = rights
            .first()
            .map(|stream| getsockopt(stream, PeerCredentials));
        let pid = who.transpose()?.and_then(|who| Pid::from_raw(who.pid()));
        Ok(Some((said, pid)))
    }

    /// The first process, for the caller to watch.
    pub fn first(&mut self) -> Option<Server> {
        self.first.take()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(mut first) = self.first.take() {
            // All processes of the sandbox end with the first process. A large process ends slowly.
            let buried = thread::Builder::new().spawn(move || first.end());
            drop(buried);
        }
    }
}

/// Readable when a report has arrived.
impl AsFd for Sandbox {
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

/// The arguments of our binary.
fn words(criu: &Criu, way: ProcessSource<'_>) -> io::Result<Vec<OsString>> {
    let mut words = vec![supervise::own_binary()?.into_os_string()];
    let mut add = |one: &[&OsStr]| words.extend(one.iter().map(OsString::from));
    add(&[
        sandbox::SANDBOX_COMMAND.as_ref(),
        "--criu".as_ref(),
        criu.path().as_ref(),
    ]);
    match way {
        ProcessSource::Command(command) => {
            add(&["--".as_ref()]);
            words.extend(command.iter().cloned());
        }
        ProcessSource::Image(number, directory) | ProcessSource::Service(number, directory) => {
            let number = number.to_string();
            add(&["--number".as_ref(), number.as_ref()]);
            add(&["--image".as_ref(), directory.as_ref()]);
        }
    }
    if let ProcessSource::Service(..) = way {
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

/// A request of the supervisor; `None`: the supervisor is dead.
pub(crate) fn receive_request(from: BorrowedFd<'_>) -> io::Result<Option<SandboxRequest>> {
    let (bytes, rights) = receive(from, RecvFlags::empty())?;
    Ok(match bytes.split_at_checked(1) {
        Some((BEGIN_MESSAGE, _)) => Some(SandboxRequest::Begin(rights)),
        Some((GO_MESSAGE, _)) => Some(SandboxRequest::Go),
        Some((DUMP_MESSAGE, path)) => Some(SandboxRequest::Dump(
            OsString::from_vec(path.to_vec()).into(),
        )),
        _ => None,
    })
}

pub(crate) fn send_report(
    to: BorrowedFd<'_>,
    said: &SandboxReport,
    rights: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let (kind, more) = match said {
        SandboxReport::Resumed => (RESUMED_REPLY, ""),
        SandboxReport::Dumped => (DUMPED_REPLY, ""),
        SandboxReport::Failed(why) => (FAILED_REPLY, why.as_str()),
    };
    let more = &more.as_bytes()[..more.len().min(MAX_MESSAGE_BYTES - 1)];
    send_rights(to, &[&kind[..], more].concat(), rights)
}
