//! Handover of sockets to replayed processes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    mem::{self, MaybeUninit},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
    time::Duration,
};

use north_abi::handover::{Ends, GO, Message, Position};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, OFlags, fallocate, fcntl_setfl, memfd_create},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg,
        shutdown, socketpair,
        sockopt::{Timeout, set_socket_timeout},
    },
};

use crate::{
    handover_report::{ConnectionReport, HandoverReport, ServiceReport},
    snapshot_tail::SnapshotTail,
};

/// The supervisor's end of a handover.
#[derive(Debug)]
pub struct Handover {
    file: File,
    /// Bytes of the file that were read, and freed.
    read: u64,
    given_back: u64,
    report: HandoverReport,
    supervisor_socket: OwnedFd,
    process_socket: Option<OwnedFd>,
    /// By process that has reported: the socket to the process, and the number of open connections.
    replayed: BTreeMap<u32, (OwnedFd, u32)>,
    /// Other messages.
    requests: Vec<(Message, Option<OwnedFd>)>,
}

const PAGE_BYTES: u64 = 4096;

/// Longest wait for a process whose socket is full.
const PROCESS_RECEIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Failure of a handover.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The file or the socket failed.
    #[error("the handover of connections failed: {0}")]
    Io(#[from] io::Error),
    /// A process has written a malformed entry.
    #[error("what the replayed process says of its connections makes no sense after {at} bytes")]
    Malformed {
        /// Offset in the file.
        at: u64,
    },
    /// A process that stops for an image has an upstream connection: the image does not keep the output to that
    /// connection.
    #[error("the server has opened connections to others")]
    Opened,
    /// The retained output of a connection has a gap.
    #[error("the replayed process has not kept all that its client may lack")]
    Gap,
    /// Processes have not served a connection one after another.
    #[error(
        "replayed processes do not go on with a connection where those before them have let it go"
    )]
    Row,
    /// The number of open connections differs from the announced number.
    #[error("the replayed process has passed on {passed} open connections, and says {said}")]
    OtherCount {
        /// Open connections in the file.
        passed: usize,
        /// The announced number.
        said: u32,
    },
}

impl Handover {
    /// A new file and a new pair of sockets.
    ///
    /// # Errors
    /// The file or the sockets cannot be made.
    pub fn new() -> io::Result<Self> {
        let file = File::from(memfd_create("outlive-handover", MemfdFlags::CLOEXEC)?);
        // Concurrent writers share the file position. The kernel does not lock the position of a file in memory.
        fcntl_setfl(&file, OFlags::APPEND)?;
        let flags = SocketFlags::CLOEXEC;
        let (supervisor_socket, process_socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self {
            file,
            read: 0,
            given_back: 0,
            report: HandoverReport::default(),
            supervisor_socket,
            process_socket: Some(process_socket),
            replayed: BTreeMap::new(),
            requests: Vec::new(),
        })
    }

    /// The same for a process restored from an image, with the tail of that image.
    ///
    /// # Errors
    /// As [`Handover::new`].
    pub fn of(kept: &SnapshotTail) -> io::Result<Self> {
        Ok(Self {
            report: kept.report.clone(),
            ..Self::new()?
        })
    }

    /// The process has inherited its socket. From here on its close is visible.
    pub fn has_begun(&mut self) {
        self.process_socket = None;
    }

    /// Whether no process has the socket any more, and all messages were received.
    ///
    /// # Errors
    /// The socket failed.
    pub fn is_over(&self) -> io::Result<bool> {
        match recv(
            &self.supervisor_socket,
            &mut [0; 1],
            RecvFlags::DONTWAIT | RecvFlags::PEEK,
        ) {
            Ok((length, _)) => Ok(length == 0),
            Err(rustix::io::Errno::AGAIN) => Ok(false),
            Err(rustix::io::Errno::CONNRESET) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// The tail of the image of a stopped process. `positions` are the clients' positions at the start of the replay.
    ///
    /// # Errors
    /// The reports are malformed.
    pub fn snapshot_tail(&mut self, positions: &[Position]) -> Result<SnapshotTail, HandoverError> {
        self.all()?.snapshot_tail(positions)
    }

    /// The file, to be inherited as [`north_abi::layout::HANDOVER_FD`].
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The process's socket, to be inherited as [`north_abi::layout::SOCKET_FD`], until it [has
    /// begun](Self::has_begun).
    #[must_use]
    pub fn process_socket(&self) -> Option<BorrowedFd<'_>> {
        self.process_socket.as_ref().map(AsFd::as_fd)
    }

    /// Our socket: readable when a process has replayed its record.
    #[must_use]
    pub fn supervisor_socket(&self) -> BorrowedFd<'_> {
        self.supervisor_socket.as_fd()
    }

    /// Receives the messages of processes, without a wait. Answers whether there was a message.
    ///
    /// # Errors
    /// The socket failed, or a message is malformed.
    pub fn receive_messages(&mut self) -> Result<bool, HandoverError> {
        let mut news = false;
        while let Some((message, socket)) = self.message()? {
            news = true;
            match (message, socket) {
                (
                    Some(Message::Replayed {
                        process,
                        connections,
                    }),
                    Some(socket),
                ) => {
                    // A process that hangs must not block the supervisor.
                    set_socket_timeout(&socket, Timeout::Send, Some(PROCESS_RECEIVE_TIMEOUT))
                        .map_err(io::Error::from)?;
                    self.replayed.insert(process, (socket, connections));
                }
                (Some(Message::Replayed { .. }) | None, _) => {
                    return Err(HandoverError::Malformed { at: 0 });
                }
                (Some(other), socket) => self.requests.push((other, socket)),
            }
        }
        Ok(news)
    }

    /// Refuses all further messages. Earlier messages can still be received.
    ///
    /// # Errors
    /// The socket failed.
    pub fn stop_listening(&self) -> io::Result<()> {
        Ok(shutdown(&self.supervisor_socket, Shutdown::Read)?)
    }

    /// Other messages with their descriptors, since the last call.
    pub fn take_requests(&mut self) -> Vec<(Message, Option<OwnedFd>)> {
        mem::take(&mut self.requests)
    }

    fn message(&self) -> io::Result<Option<(Option<Message>, Option<OwnedFd>)>> {
        let mut bytes = [0; Message::SIZE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let length = match recvmsg(
            &self.supervisor_socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut beside,
            flags,
        ) {
            Ok(received) if received.bytes == 0 => return Ok(None), // the other end is closed
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let descriptors = beside.drain().filter_map(|one| match one {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptor = descriptors.flatten().next();
        Ok(Some((Message::from_bytes(&bytes[..length]), descriptor)))
    }

    /// Whether all of these processes have reported.
    #[must_use]
    pub fn has_reports_of(&self, processes: &BTreeSet<u32>) -> bool {
        processes
            .iter()
            .all(|process| self.replayed.contains_key(process))
    }

    /// Reads the new entries of the file, and frees their memory. An incomplete entry is read by a later call.
    ///
    /// # Errors
    /// An entry is malformed.
    pub fn read_entries(&mut self) -> Result<(), HandoverError> {
        let end = self.file.metadata()?.len();
        let length = usize::try_from(end - self.read).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, self.read)?;
        self.read += self.report.read(&bytes) as u64;
        let free = self.read / PAGE_BYTES * PAGE_BYTES;
        if free > self.given_back {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let length = free - self.given_back;
            fallocate(&self.file, flags, self.given_back, length).map_err(io::Error::from)?;
            self.given_back = free;
        }
        Ok(())
    }

    /// Memory of the reports, bytes.
    #[must_use]
    pub fn report_bytes(&self) -> usize {
        self.report.size()
    }

    /// Drops output that clients have acknowledged. Clients that are not in `received` are gone.
    pub fn forget(&mut self, received: &HashMap<Ends, u64>) {
        self.report.forget(received);
    }

    /// The connections of all processes.
    ///
    /// # Errors
    /// The reports are malformed, or contradict the number of open connections.
    pub fn take(&mut self) -> Result<ServiceReport, HandoverError> {
        let open = self.replayed.values().map(|(_, open)| open).sum();
        self.all()?.finish(open)
    }

    /// Reads the rest of the file.
    fn all(&mut self) -> Result<HandoverReport, HandoverError> {
        self.read_entries()?;
        if self.read != self.file.metadata()?.len() {
            return Err(HandoverError::Malformed { at: self.read });
        }
        Ok(mem::take(&mut self.report))
    }

    /// Sends the socket of a connection to all processes that have the connection open, except processes that ended in
    /// their replay.
    ///
    /// # Errors
    /// The main process is gone, or a process does not read.
    pub fn give<S>(&self, passed: &ConnectionReport<S>, socket: BorrowedFd<'_>) -> io::Result<()> {
        let number = passed.connection.to_le_bytes();
        for process in &passed.holders {
            let Some((way, _)) = self.replayed.get(process) else {
                continue;
            };
            let sockets = [socket];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut beside = SendAncillaryBuffer::new(&mut space);
            beside.push(SendAncillaryMessage::ScmRights(&sockets));
            let sent = sendmsg(
                way,
                &[IoSlice::new(&number)],
                &mut beside,
                SendFlags::NOSIGNAL,
            );
            match sent {
                Err(Errno::PIPE | Errno::CONNRESET) if *process != 0 => {}
                Err(Errno::AGAIN) => {
                    let why = format!(
                        "it has taken none for {} s",
                        PROCESS_RECEIVE_TIMEOUT.as_secs()
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                sent => drop(sent?),
            }
        }
        Ok(())
    }

    /// All sockets are sent: the processes continue.
    ///
    /// # Errors
    /// The main process is gone.
    pub fn go(&mut self) -> io::Result<()> {
        for (process, (way, _)) in mem::take(&mut self.replayed) {
            let mut beside = SendAncillaryBuffer::default();
            let sent = sendmsg(
                &way,
                &[IoSlice::new(&[GO])],
                &mut beside,
                SendFlags::NOSIGNAL,
            );
            if process == 0 {
                sent?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use north_abi::{
        Which,
        handover::{ClientPosition, Entry, UpstreamPosition},
    };

    use super::*;

    fn position(
        connection: u32,
        process: u32,
        counts: [u64; 2],
        is_closed: bool,
    ) -> Entry<'static> {
        Entry::ClientPosition {
            connection,
            process,
            position: ClientPosition {
                ends: Ends::default(),
                instream: counts[0],
                outstream: counts[1],
                is_shut: false,
                is_closed,
                which: Which::Unknown,
            },
        }
    }

    /// Writers run at once, like processes that inherit the file.
    #[test]
    fn concurrent_writers_lose_no_entry() {
        const EACH: u32 = 5000;
        let mut handover = Handover::new().expect("a handover");
        let file = &handover.file;
        std::thread::scope(|scope| {
            for writer in 0..4 {
                scope.spawn(move || {
                    for number in 0..EACH {
                        let entry = position(writer * EACH + number, writer, [0, 0], false);
                        let mut shared: &File = file;
                        shared.write_all(&entry.header()).expect("written");
                    }
                });
            }
        });
        handover.read_entries().expect("entries");
        let all = mem::take(&mut handover.report).finish(4 * EACH);
        all.expect("all of them");
    }

    fn take(said: &[(u32, u32)], entries: &[Entry<'_>]) -> Result<ServiceReport, HandoverError> {
        let mut handover = Handover::new().expect("a handover");
        for (process, connections) in said {
            let (way, _) = socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )
            .expect("a pair");
            handover.replayed.insert(*process, (way, *connections));
        }
        let headers = entries.iter().map(Entry::header);
        let bytes: Vec<u8> = headers.flatten().collect();
        handover.file.write_all_at(&bytes, 0).expect("written");
        handover.take()
    }

    #[test]
    fn open_connection_count_is_checked() {
        let opened = |is_closed| Entry::UpstreamPosition {
            connection: 3,
            process: 0,
            position: UpstreamPosition {
                serial: 1,
                is_local: false,
                instream: 3,
                outstream: 4,
                is_shut: false,
                is_closed,
            },
        };
        let both = [position(1, 0, [7, 9], true), position(2, 0, [7, 9], false)];
        let all = take(&[(0, 2)], &[both[1], opened(false)]).expect("all");
        assert_eq!((all.clients.len(), all.opened.len()), (1, 1));
        assert_eq!(take(&[(0, 1)], &both).expect("both").clients.len(), 2);
        assert_eq!(
            take(&[(0, 0)], &[]).expect("none"),
            ServiceReport::default()
        );
        for (open, entries) in [(2, &both[..]), (0, &both), (1, &[]), (1, &both[..1])] {
            let refused = take(&[(0, open)], entries);
            assert!(
                matches!(refused, Err(HandoverError::OtherCount { said, .. }) if said == open),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn ended_process_does_not_block_handover() {
        let pair = || {
            let flags = SocketFlags::CLOEXEC;
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
        };
        let mut handover = Handover::new().expect("a handover");
        let (way, first) = pair();
        handover.replayed.insert(0, (way, 1));
        let (way, ended) = pair();
        handover.replayed.insert(3, (way, 1));
        drop(ended);
        let held = [position(1, 3, [7, 9], false), position(1, 0, [0, 0], false)];
        let bytes: Vec<u8> = held.iter().flat_map(Entry::header).collect();
        handover.file.write_all_at(&bytes, 0).expect("written");
        let passed = handover.take().expect("one");
        assert_eq!(passed.clients[0].holders, [3, 0]);
        let (socket, _) = pair();
        let given = handover.give(&passed.clients[0], socket.as_fd());
        given.expect("the first one is there");
        let mut number = [0; 4];
        let (length, _) = recv(&first, &mut number, RecvFlags::DONTWAIT).expect("given");
        assert_eq!((length, u32::from_le_bytes(number)), (4, 1));
        drop(first);
        let given = handover.give(&passed.clients[0], socket.as_fd());
        given.expect_err("nobody is there");
    }

    #[test]
    fn connection_closes_with_last_holder() {
        let served = position(1, 3, [7, 9], true);
        let held = position(1, 0, [0, 0], false);
        for entries in [[served, held], [held, served]] {
            let passed = take(&[(0, 1), (3, 0)], &entries).expect("one");
            let [one] = &passed.clients[..] else {
                panic!("{passed:?}");
            };
            let position = one.position;
            assert_eq!((position.instream, position.outstream), (7, 9));
            assert!(!position.is_closed);
            assert_eq!(one.holders, [0]);
        }
        let both = [position(1, 3, [7, 9], false), held];
        let passed = take(&[(0, 1), (3, 1)], &both).expect("one");
        assert_eq!(passed.clients[0].holders, [3, 0]);
        assert!(take(&[(0, 1), (3, 0)], &both).is_err(), "one too many");
    }
}
