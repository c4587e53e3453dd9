//! Transfers of the crate `bulk` between two hosts of a lab, each end in a thread: without a control stream, and
//! without hashes. The cost of the receiver is the processor time of its thread, the kernel's work for its socket with
//! it. (On a virtual link the packets themselves arrive in the sender's time.)

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use blast::connections::{Arrivals, Queue};
use blast::{BlastRanges, Layout, Policy, Settings};
use bulk::carrier::{
    self, Connected, DataSocket, FileSink, Incoming, MappedSink, MemorySink, MemorySource,
    Outgoing, Pace, PacketKey, Placement, Reception, Sink, receive, receive_blasts, send,
    send_blasts,
};
use lab::Host;
use rustix::time::{ClockId, clock_gettime};

/// Key of the packets, and key of the answers.
const KEYS: [PacketKey; 2] = [PacketKey::Secret([1; 16]), PacketKey::Secret([2; 16])];
const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the bytes go.
#[derive(Debug, Clone)]
pub enum Target {
    /// Memory that has its pages.
    Memory,
    /// A file that has its pages, in a file system that may be memory.
    File(PathBuf),
    /// A new file: the receiver gets the pages, too.
    NewFile(PathBuf),
}

/// A transfer.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// Payload of a packet, bytes.
    pub packet_bytes: u32,
    /// Packets of a blast.
    pub packets: u32,
    /// Blasts that may be under way; 1: the next waits for the acknowledgement, as in the paper.
    pub ahead: u32,
    /// Bytes in all.
    pub size: u64,
    /// Where payloads are received.
    pub placement: Placement,
    /// Where they go.
    pub target: Target,
    /// Packets are encrypted, as always outside of experiments.
    pub is_encrypted: bool,
    /// By a TCP connection rather than by datagrams: `ahead` has no meaning, and no packet is misplaced.
    pub is_connected: bool,
}

/// The costs of a transfer.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    /// From the first packet until the sender knows that all is there.
    pub elapsed: Duration,
    /// Processor time of the receiver.
    pub processor: Duration,
    /// What the receiver counted.
    pub reception: Reception,
}

impl Transfer {
    /// Sends zeros from one host to the other, and checks that all arrive.
    ///
    /// # Errors
    /// An end fails.
    pub fn run(&self, sender: &Host, receiver: &Host) -> Result<Cost> {
        match self.is_connected {
            true => self.run_connected(sender, receiver),
            false => self.run_datagrams(sender, receiver),
        }
    }

    fn run_datagrams(&self, sender: &Host, receiver: &Host) -> Result<Cost> {
        let stop = AtomicBool::new(false);
        let (own, peer) = (socket(sender)?, socket(receiver)?);
        let addresses = (own.local()?, peer.local()?);
        peer.connect(addresses.0)?;
        let (tell, is_ready) = mpsc::channel();
        thread::scope(|scope| {
            let stop = &stop;
            let receiving =
                thread::Builder::new()
                    .name("rcv".into())
                    .spawn_scoped(scope, move || {
                        let received = self.receive(&peer, addresses.0, (tell, stop));
                        stop.store(true, Ordering::Release);
                        received
                    })?;
            // Without a message the receiver has failed, and says why.
            let mut source = MemorySource(vec![0xa5; usize::try_from(self.size)?]);
            let sent = is_ready.recv().is_ok().then(|| {
                let begun = Instant::now();
                let sent = self.send(&own, addresses.1, &mut source, stop);
                let elapsed = begun.elapsed();
                stop.store(true, Ordering::Release);
                sent.map(|()| elapsed)
            });
            let received = receiving
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let (processor, reception) = received;
            Ok(Cost {
                elapsed: sent.context("the receiver was not ready")??,
                processor,
                reception,
            })
        })
    }

    fn run_connected(&self, sender: &Host, receiver: &Host) -> Result<Cost> {
        let address = SocketAddr::new(receiver.address().ipv4().into(), 0);
        let listener = receiver.enter(|| TcpListener::bind(address))??;
        let to = listener.local_addr()?;
        let near = sender.enter(|| TcpStream::connect(to))??;
        let (far, _) = listener.accept()?;
        let transfer = Connected {
            key: self.packet_key(),
            layout: self.layout()?,
            size: self.size,
        };
        let queue = Mutex::new(Queue::new(transfer.layout, self.size, BlastRanges::new())?);
        let (tell, is_ready) = mpsc::channel();
        thread::scope(|scope| {
            let receiving = scope.spawn(|| self.receive_connected(&far, transfer, tell));
            let mut source = MemorySource(vec![0xa5; usize::try_from(self.size)?]);
            let sent = is_ready.recv().is_ok().then(|| {
                let begun = Instant::now();
                let never = AtomicBool::new(false);
                let queue = (&queue, &Pace::new(None));
                let sent = send_blasts(&near, &transfer, queue, &mut source, &never);
                sent.map(|()| begun.elapsed())
            });
            let processor = receiving
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(Cost {
                elapsed: sent.context("the receiver was not ready")??,
                processor,
                reception: Reception::default(),
            })
        })
    }

    /// Processor time of the thread.
    fn receive_connected(
        &self,
        connection: &TcpStream,
        transfer: Connected,
        tell: mpsc::Sender<()>,
    ) -> Result<Duration> {
        let arrivals = Arrivals::new(transfer.layout, self.size, BlastRanges::new())?;
        let arrivals = Mutex::new(arrivals);
        let (mut sink, is_counted) = self.sink()?;
        let begun = match is_counted {
            true => Duration::ZERO,
            false => Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?,
        };
        tell.send(()).map_err(|_| anyhow!("the sender is gone"))?;
        let never = AtomicBool::new(false);
        let sink = sink.as_mut();
        let transfer = (&transfer.key, &arrivals);
        receive_blasts(connection, transfer, sink, self.placement, &never)?;
        let is_whole = arrivals.into_inner().is_ok_and(|it| it.is_whole());
        ensure!(is_whole, "the transfer is not whole");
        Ok(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))? - begun)
    }

    fn send(
        &self,
        socket: &DataSocket,
        to: SocketAddr,
        source: &mut MemorySource,
        stop: &AtomicBool,
    ) -> Result<()> {
        let layout = self.layout()?;
        let outgoing = Outgoing {
            key: self.packet_key(),
            settings: Settings {
                layout,
                transfer: 7,
                policy: Policy::Full,
                rate_max: None,
                round_trip: Duration::from_millis(1),
                peer_timeout: PEER_TIMEOUT,
            },
            targets: vec![carrier::Target {
                address: to,
                key: KEYS[1],
                credit: self.ahead,
                present: BlastRanges::new(),
            }],
        };
        let sent = send(socket, outgoing, source, stop)?;
        ensure!(sent.complete == [0], "the receiver is lost");
        Ok(())
    }

    fn receive(
        &self,
        socket: &DataSocket,
        from: SocketAddr,
        (tell, stop): (mpsc::Sender<()>, &AtomicBool),
    ) -> Result<(Duration, Reception)> {
        let incoming = Incoming {
            transfer: 7,
            sender: from,
            key: self.packet_key(),
            answer_key: KEYS[1],
            layout: self.layout()?,
            size: self.size,
            ahead: self.ahead,
            present: BlastRanges::new(),
            placement: self.placement,
        };
        let (mut sink, is_counted) = self.sink()?;
        let begun = match is_counted {
            true => Duration::ZERO,
            false => Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?,
        };
        tell.send(()).map_err(|_| anyhow!("the sender is gone"))?;
        let reception = receive(socket, incoming, sink.as_mut(), stop)?;
        let now = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?;
        Ok((now - begun, reception))
    }

    fn layout(&self) -> Result<Layout> {
        Ok(Layout::new(self.packet_bytes, self.packets)?)
    }

    const fn packet_key(&self) -> PacketKey {
        match self.is_encrypted {
            true => KEYS[0],
            false => PacketKey::None,
        }
    }

    /// The sink, and whether the time since the beginning of the thread counts.
    fn sink(&self) -> Result<(Box<dyn Sink>, bool)> {
        let size = usize::try_from(self.size)?;
        let is_mapped = self.placement != Placement::Copied;
        let (path, is_new) = match &self.target {
            Target::Memory => return Ok((Box::new(MemorySink(vec![1; size])), false)),
            Target::File(path) => (path, false),
            Target::NewFile(path) => (path, true),
        };
        let file = File::options();
        let mut file = file.clone();
        let file = file
            .read(true)
            .write(true)
            .create(true)
            .truncate(is_new)
            .open(path)?;
        file.set_len(self.size)?;
        if !is_new || is_mapped {
            let mapped = MappedSink::new(&file)?;
            mapped.populate(0..size)?;
            if is_mapped {
                return Ok((Box::new(mapped), is_new));
            }
        }
        Ok((Box::new(FileSink(file)), is_new))
    }
}

impl Cost {
    /// Processor time of the receiver, seconds.
    #[must_use]
    pub const fn seconds(&self) -> f64 {
        self.processor.as_secs_f64()
    }
}

fn socket(host: &Host) -> Result<DataSocket> {
    let address = SocketAddr::new(host.address().ipv4().into(), 0);
    Ok(host.enter(|| DataSocket::bind(address))??)
}
