//! A process is given the sockets of its connections.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read as _, Seek as _, SeekFrom},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
};
use wrap_abi::handover::{Entry, GO, Message, Reach, Standing};

/// The supervisor's end of it.
#[derive(Debug)]
pub struct Handover {
    file: File,
    ours: OwnedFd,
    theirs: OwnedFd,
}

/// Why connections cannot be handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The file or the socket failed.
    #[error("the handover of connections failed: {0}")]
    Io(#[from] io::Error),
    /// The process has written what is no entry.
    #[error("what the replayed process says of its connections makes no sense after {at} bytes")]
    Malformed {
        /// Where.
        at: usize,
    },
    /// What it has said has a gap.
    #[error("the replayed process has not kept all that its client may lack")]
    Gap,
    /// It has passed on more connections than it says, or fewer.
    #[error("the replayed process has passed on {passed} open connections, and says {said}")]
    OtherCount {
        /// Those that it has passed on, and not closed.
        passed: usize,
        /// What it says.
        said: u32,
    },
}

/// A connection as a process has left it. `S`: where it stands, a client's ([`Standing`]) or one that the process has
/// opened ([`Reach`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed<S = Standing> {
    /// The process's number for it.
    pub connection: u32,
    /// Where it stands.
    pub standing: S,
    /// Where in the outstream the bytes below begin.
    pub offset: u64,
    /// What was said, and what its client may not have, up to where it stands.
    pub said: Vec<u8>,
}

/// All that a process has passed on, each in the order in which they began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllPassed {
    /// Its clients' connections.
    pub clients: Vec<Passed>,
    /// Those that it has opened.
    pub opened: Vec<Passed<Reach>>,
}

impl AllPassed {
    fn open(&self) -> usize {
        let clients = self.clients.iter().map(|one| one.standing.is_closed);
        let opened = self.opened.iter().map(|one| one.standing.is_closed);
        clients.chain(opened).filter(|is_closed| !is_closed).count()
    }
}

impl Handover {
    /// A new file and a new pair of sockets.
    ///
    /// # Errors
    /// There is no room for them.
    pub fn new() -> io::Result<Self> {
        let file = File::from(memfd_create("outlive-handover", MemfdFlags::CLOEXEC)?);
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self { file, ours, theirs })
    }

    /// The file, to be inherited as [`wrap_abi::layout::HANDOVER_FD`].
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The process's socket, to be inherited as [`wrap_abi::layout::SOCKET_FD`].
    #[must_use]
    pub fn theirs(&self) -> BorrowedFd<'_> {
        self.theirs.as_fd()
    }

    /// Our socket: readable when a process has replayed its record.
    #[must_use]
    pub fn ours(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }

    /// What a process has said, and a descriptor beside it, without waiting for it; `None`: nothing yet.
    ///
    /// # Errors
    /// The socket failed.
    pub fn message(&self) -> io::Result<Option<(Message, Option<OwnedFd>)>> {
        let mut bytes = [0; Message::SIZE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let length = match recvmsg(
            &self.ours,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut beside,
            flags,
        ) {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let descriptors = beside.drain().filter_map(|one| match one {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptor = descriptors.flatten().next();
        Ok(Message::from_bytes(&bytes[..length]).map(|message| (message, descriptor)))
    }

    /// What it has written: its connections, of which it says that so many are `open`. The file is empty afterwards.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn take(&mut self, open: u32) -> Result<AllPassed, HandoverError> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_end(&mut bytes)?;
        ftruncate(&self.file, 0).map_err(io::Error::from)?;
        self.file.seek(SeekFrom::Start(0))?;
        let all = read(&bytes)?;
        let passed = all.open();
        if u32::try_from(passed) != Ok(open) {
            return Err(HandoverError::OtherCount { passed, said: open });
        }
        Ok(all)
    }

    /// The process's connection goes on with this socket.
    ///
    /// # Errors
    /// The process is gone.
    pub fn give(&self, connection: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let sockets = [socket];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&sockets));
        let number = connection.to_le_bytes();
        sendmsg(
            &self.ours,
            &[IoSlice::new(&number)],
            &mut beside,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// These were all: the process goes on.
    ///
    /// # Errors
    /// The process is gone.
    pub fn go(&self) -> io::Result<()> {
        let mut beside = SendAncillaryBuffer::default();
        sendmsg(
            &self.ours,
            &[IoSlice::new(&[GO])],
            &mut beside,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }
}

type Said = BTreeMap<u32, (u64, Vec<u8>)>;

/// A connection that has said so much.
fn passed<S>(
    said: &mut Said,
    connection: u32,
    standing: S,
    outstream: u64,
) -> Result<Passed<S>, HandoverError> {
    let (offset, said) = said.remove(&connection).unwrap_or((outstream, Vec::new()));
    if offset + said.len() as u64 != outstream {
        return Err(HandoverError::Gap);
    }
    Ok(Passed {
        connection,
        standing,
        offset,
        said,
    })
}

fn read(bytes: &[u8]) -> Result<AllPassed, HandoverError> {
    let mut said = Said::new();
    let mut all = AllPassed::default();
    let mut at = 0;
    while at < bytes.len() {
        let (entry, length) = Entry::read(&bytes[at..]).ok_or(HandoverError::Malformed { at })?;
        at += length;
        match entry {
            Entry::Said {
                connection,
                offset,
                bytes,
            } => {
                let (from, known) = said.entry(connection).or_insert((offset, Vec::new()));
                if *from + known.len() as u64 != offset {
                    return Err(HandoverError::Gap);
                }
                known.extend_from_slice(bytes);
            }
            Entry::Stands {
                connection,
                standing,
            } => {
                let outstream = standing.outstream;
                let one = passed(&mut said, connection, standing, outstream)?;
                all.clients.push(one);
            }
            Entry::Reaches { connection, reach } => {
                let one = passed(&mut said, connection, reach, reach.outstream)?;
                all.opened.push(one);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use wrap_abi::handover::Ends;

    use super::*;

    #[test]
    fn as_many_connections_are_open_as_it_says() {
        let mut handover = Handover::new().expect("a handover");
        let standing = |is_closed| Entry::Stands {
            connection: 1,
            standing: Standing {
                ends: Ends::default(),
                instream: 7,
                outstream: 9,
                is_shut: false,
                is_closed,
            },
        };
        let mut take = |open, entries: &[Entry<'_>]| {
            let headers = entries.iter().map(Entry::header);
            let bytes: Vec<u8> = headers.flatten().collect();
            handover.file.write_all_at(&bytes, 0).expect("written");
            handover
                .take(open)
                .map(|passed| (passed.clients.len(), passed.opened.len()))
        };
        let opened = |is_closed| Entry::Reaches {
            connection: 2,
            reach: Reach {
                serial: 1,
                is_local: false,
                instream: 3,
                outstream: 4,
                is_shut: false,
                is_closed,
            },
        };
        let both = [standing(true), standing(false)];
        assert_eq!(take(1, &both).expect("both"), (2, 0));
        assert_eq!(take(0, &[]).expect("none"), (0, 0));
        assert_eq!(
            take(2, &[opened(true), standing(false), opened(false)]).expect("all"),
            (1, 2)
        );
        for (open, entries) in [(2, &both[..]), (0, &both), (1, &[]), (1, &both[..1])] {
            let refused = take(open, entries);
            assert!(
                matches!(refused, Err(HandoverError::OtherCount { said, .. }) if said == open),
                "{refused:?}"
            );
        }
    }
}
