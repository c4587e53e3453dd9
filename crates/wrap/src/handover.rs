//! A process is given the sockets of its connections.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    mem::{self, MaybeUninit},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use rustix::{
    fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
};
use wrap_abi::handover::{Ends, Entry, GO, Message};

use crate::heard::{AllPassed, Heard};

/// The supervisor's end of it.
#[derive(Debug)]
pub struct Handover {
    file: File,
    /// How far it was read, and given back.
    read: u64,
    given_back: u64,
    heard: Heard,
    ours: OwnedFd,
    theirs: OwnedFd,
}

const PAGE: u64 = 4096;

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
        at: u64,
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

impl Handover {
    /// A new file and a new pair of sockets.
    ///
    /// # Errors
    /// There is no room for them.
    pub fn new() -> io::Result<Self> {
        let file = File::from(memfd_create("outlive-handover", MemfdFlags::CLOEXEC)?);
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self {
            file,
            read: 0,
            given_back: 0,
            heard: Heard::default(),
            ours,
            theirs,
        })
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

    /// Read what it has written since, and give the room back. What it is about to write is read later.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn listen(&mut self) -> Result<(), HandoverError> {
        let end = self.file.metadata()?.len();
        let length = usize::try_from(end - self.read).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, self.read)?;
        let mut rest = &bytes[..];
        while let Some((entry, length)) = Entry::read(rest) {
            self.heard.take(&entry)?;
            self.read += length as u64;
            rest = &rest[length..];
        }
        let free = self.read / PAGE * PAGE;
        if free > self.given_back {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let length = free - self.given_back;
            fallocate(&self.file, flags, self.given_back, length).map_err(io::Error::from)?;
            self.given_back = free;
        }
        Ok(())
    }

    /// What is kept of it takes so many bytes.
    #[must_use]
    pub fn held(&self) -> usize {
        self.heard.size()
    }

    /// So much of the outstreams of these connections is with their clients; there are no others.
    pub fn forget(&mut self, received: &HashMap<Ends, u64>) {
        self.heard.forget(received);
    }

    /// What it has written: its connections, of which it says that so many are `open`.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn take(&mut self, open: u32) -> Result<AllPassed, HandoverError> {
        self.listen()?;
        if self.read != self.file.metadata()?.len() {
            return Err(HandoverError::Malformed { at: self.read });
        }
        mem::take(&mut self.heard).finish(open)
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

#[cfg(test)]
mod tests {
    use wrap_abi::handover::{Reach, Standing};

    use super::*;

    #[test]
    fn as_many_connections_are_open_as_it_says() {
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
        let take = |open, entries: &[Entry<'_>]| {
            let headers = entries.iter().map(Entry::header);
            let bytes: Vec<u8> = headers.flatten().collect();
            let mut handover = Handover::new().expect("a handover");
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
