//! The relay: a thread that carries the frames of an impaired link, frame by frame, with the faults of the link's
//! [`Impairment`]s.
//!
//! The relay holds two packet sockets, on the host's switch port and on the near end of a cable to the bridge. Frames
//! keep the offload state (see [`PacketSocket::open`]). A checksum that the sender's stack left to the device is still
//! unfinished after the relay, as on the direct way.
//!
//! The thread alone touches the queues. New settings reach the thread as an order, which the thread confirms between
//! two batches of frames: when [`Relay::set`] returns, no frame passes under the old settings any more.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::packet_socket::{MAX_FRAME_BYTES, OFFLOAD_HEADER_BYTES, PacketSocket};
use crate::pipe::Pipe;
use crate::{Direction, Impairment, Mac};

/// Frames taken from a socket before the other socket is next.
const MAX_BATCH_FRAMES: usize = 64;

/// The faults of a direction.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) impairment: Impairment,
    pub(crate) cut: bool,
    /// Frames of these senders do not pass.
    pub(crate) shut_out: Vec<Mac>,
}

/// Both directions of a link.
#[derive(Clone, Debug)]
pub(crate) struct Ways {
    pub(crate) to_host: Way,
    pub(crate) from_host: Way,
}

impl Ways {
    /// No frame passes.
    pub(crate) fn closed() -> Self {
        let way = Way {
            impairment: Impairment::with_seed(0),
            cut: true,
            shut_out: Vec::new(),
        };
        Self {
            to_host: way.clone(),
            from_host: way,
        }
    }

    fn shut_out(self) -> [Vec<Mac>; 2] {
        [self.to_host.shut_out, self.from_host.shut_out]
    }
}

/// The running thread.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Wakes the waiting thread.
    wake: Arc<OwnedFd>,
    /// Hanging up ends the thread.
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// New settings, and a channel for the confirmation.
struct Order {
    ways: Ways,
    done: SyncSender<()>,
}

impl Relay {
    /// Starts to carry frames between the host's port and the bridge's cable.
    pub(crate) fn start(
        name: &str,
        host: PacketSocket,
        bridge: PacketSocket,
        ways: &Ways,
    ) -> io::Result<Self> {
        let pipe = |way: &Way, direction: Direction| {
            Pipe::new(way.impairment.clone(), way.cut, direction as u64)
        };
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, orders) = channel();
        let carrier = Carrier {
            wake: Arc::clone(&wake),
            orders,
            to_host: pipe(&ways.to_host, Direction::ToHost),
            from_host: pipe(&ways.from_host, Direction::FromHost),
            shut_out: ways.clone().shut_out(),
            host,
            bridge,
            start: Instant::now(),
        };
        let thread = thread::Builder::new()
            .name(format!("relay {name}"))
            .spawn(move || carrier.run())?;
        Ok(Self {
            wake,
            orders: Some(sender),
            thread: Some(thread),
        })
    }

    /// Changes the settings.
    pub(crate) fn set(&self, ways: &Ways) {
        let (done, confirmation) = sync_channel(1);
        let order = Order {
            ways: ways.clone(),
            done,
        };
        let sent = match &self.orders {
            Some(orders) => orders.send(order).is_ok(),
            None => false,
        };
        self.wake();
        if !sent || confirmation.recv().is_err() {
            // The thread has reported the reason; no frame passes a dead relay.
            tracing::error!("a relay does not run any more");
        }
    }

    fn wake(&self) {
        if let Err(error) = rustix::io::write(&self.wake, &1u64.to_ne_bytes()) {
            tracing::error!(%error, "a relay cannot be woken");
        }
    }
}

impl Drop for Relay {
    /// Sends the frames under way at once, and ends the thread.
    fn drop(&mut self) {
        drop(self.orders.take());
        self.wake();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("a relay panicked");
        }
    }
}

/// The state of the thread.
struct Carrier {
    wake: Arc<OwnedFd>,
    orders: Receiver<Order>,
    to_host: Pipe,
    from_host: Pipe,
    /// The senders shut out to the host, and from the host.
    shut_out: [Vec<Mac>; 2],
    host: PacketSocket,
    bridge: PacketSocket,
    start: Instant,
}

impl Carrier {
    fn run(mut self) {
        let mut buffer = vec![0; MAX_FRAME_BYTES];
        while self.obey() {
            if let Err(error) = self.wait() {
                tracing::error!(%error, "a relay cannot wait for frames; its link is dead");
                return;
            }
            let (host, bridge) = (&self.host, &self.bridge);
            let [to_host, from_host] = &self.shut_out;
            let start = self.start;
            let mut carry = |from, pipe, to, shut_out| {
                carry(from, pipe, to, shut_out, start, &mut buffer);
            };
            carry(bridge, &mut self.to_host, host, to_host);
            carry(host, &mut self.from_host, bridge, from_host);
        }
        release(&mut self.to_host, Duration::MAX, &self.host);
        release(&mut self.from_host, Duration::MAX, &self.bridge);
    }

    /// Takes new settings, if there are any. Returns whether to go on.
    fn obey(&mut self) -> bool {
        // Before the read of the orders, so that a later order wakes the thread again. An empty read is no error.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        loop {
            match self.orders.try_recv() {
                Ok(Order { ways, done }) => {
                    let Ways { to_host, from_host } = ways.clone();
                    self.shut_out = ways.shut_out();
                    self.to_host.set(&to_host.impairment, to_host.cut);
                    self.from_host.set(&from_host.impairment, from_host.cut);
                    // The ordering thread waits for the confirmation, or is gone.
                    let _ = done.send(());
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Waits for a frame, a deadline or a wake-up.
    fn wait(&self) -> io::Result<()> {
        let deadlines = [&self.to_host, &self.from_host].map(Pipe::next_deadline);
        let deadline = deadlines.into_iter().flatten().min();
        let left = deadline.map(|at| at.saturating_sub(self.start.elapsed()));
        // A time that the system cannot express is as good as none.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let wake = self.wake.as_fd();
        let mut fds = [
            PollFd::new(&self.host, PollFlags::IN),
            PollFd::new(&self.bridge, PollFlags::IN),
            PollFd::new(&wake, PollFlags::IN),
        ];
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Takes a batch of frames from a socket through a pipe, and sends the due frames to the other socket.
fn carry(
    from: &PacketSocket,
    pipe: &mut Pipe,
    to: &PacketSocket,
    shut_out: &[Mac],
    start: Instant,
    buffer: &mut [u8],
) {
    for _ in 0..MAX_BATCH_FRAMES {
        let length = match from.receive(buffer) {
            Ok(Some(length)) => length,
            Ok(None) => break,
            Err(error) => {
                // The link went down; the error is reported once.
                tracing::debug!(%error, "a relay cannot receive");
                break;
            }
        };
        let Some(frame) = buffer.get(..length) else {
            tracing::warn!(length, "a frame is too large for the relay");
            continue;
        };
        if sender(frame).is_some_and(|sender| shut_out.contains(&sender)) {
            continue;
        }
        let copies = pipe.offer(start.elapsed(), frame, OFFLOAD_HEADER_BYTES);
        for _ in 0..copies {
            send(to, frame);
        }
    }
    release(pipe, start.elapsed(), to);
}

/// The link-layer address of who sent a frame: behind the receiver's.
fn sender(frame: &[u8]) -> Option<Mac> {
    let bytes = frame.get(OFFLOAD_HEADER_BYTES + 6..)?.first_chunk()?;
    Some(Mac(*bytes))
}

/// Sends the due frames.
fn release(pipe: &mut Pipe, now: Duration, to: &PacketSocket) {
    while let Some(frame) = pipe.due(now) {
        send(to, &frame);
    }
}

/// A frame that the device does not take is lost, as on any link.
fn send(to: &PacketSocket, frame: &[u8]) {
    if let Err(error) = to.send(frame) {
        tracing::debug!(%error, "a relay lost a frame");
    }
}
