//! Data that arrives beside the control stream: received, hashed and listened for, each in a thread.

use std::{
    fs::File,
    net::TcpStream,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use blast::connections::Arrivals;
use protocol::bulk::{CONNECTIONS_VERSION, ContentHash, ReceiverMessage, SenderMessage};

use super::{SenderStream, Watch, joins::Expected};
use crate::{
    BulkError,
    carrier::{FileSink, PacketKey, Placement, Progress, Supervisor, receive_blasts},
    error::SocketContext as _,
    hashes,
    locks::locked,
};

/// Period in which the sender hears of arrivals.
const NEWS_PERIOD: Duration = Duration::from_secs(1);
/// Longest time without progress in which data is still under way when the sender has sent all.
const SETTLE_TIME: Duration = Duration::from_secs(60);
/// Pause between two looks for data that is under way.
const SETTLE_CHECK_TIME: Duration = Duration::from_millis(2);
/// Pause between two looks for connections that have ended.
const CONNECTION_CHECK_TIME: Duration = Duration::from_millis(20);

/// Why nothing is stored.
pub(super) enum Interruption {
    /// The sender has withdrawn the offer.
    Withdrawn,
    /// The stored bytes have another hash.
    Differs,
    /// The file cannot be written or read.
    Storage(std::io::Error),
    /// The control stream, or the data.
    Stream(BulkError),
}

/// Receives `size` bytes of a file by `receive`, which ends when the watcher says so, and which tells the watcher its
/// progress. Returns the hash that the sender has told, and that the file has.
pub(super) fn receive_beside(
    watch: &dyn Watch,
    stream: &mut SenderStream,
    (file, size): (&File, u64),
    receive: impl FnOnce(&Watcher) -> Result<(), BulkError> + Send,
) -> Result<ContentHash, Interruption> {
    let (tell, below) = mpsc::channel();
    let watcher = Watcher::new(tell);
    thread::scope(|scope| {
        let watcher = &watcher;
        // Also after a panic: the other threads end.
        let _end = EndOfReception(watcher);
        let hashing =
            scope.spawn(move || hashes::of_growing(file, size, &below, &watcher.gives_up));
        let receiving = scope.spawn(move || receive(watcher));
        let heard = listen(watch, stream, size, watcher, &receiving);
        let heard = match heard {
            Some(Ok(hash)) => {
                let settled = settle(watch, stream, size, watcher, &receiving);
                Some(settled.map(|()| hash))
            }
            heard => heard,
        };
        watcher.is_over.store(true, Ordering::Release);
        let received = joined(receiving);
        let is_wanted = matches!((&heard, &received), (Some(Ok(_)), Ok(())));
        watcher.gives_up.store(!is_wanted, Ordering::Release);
        watcher.hush();
        let hashed = joined(hashing);
        let wanted = match (heard, received) {
            (Some(Ok(hash)), Ok(())) => hash,
            (Some(Err(interruption)), _) => return Err(interruption),
            (_, Err(BulkError::Sink(error))) => return Err(Interruption::Storage(error)),
            (Some(Ok(_)), Err(BulkError::Stopped)) => {
                return Err(Interruption::Stream(BulkError::OutOfOrder));
            }
            (_, Err(error)) => return Err(Interruption::Stream(error)),
            (None, Ok(())) => return Err(Interruption::Stream(BulkError::Closed)),
        };
        report_arrivals(stream, watcher).map_err(Interruption::Stream)?;
        match hashed.map_err(Interruption::Storage)? {
            Some(hash) if hash == wanted => Ok(hash),
            _ => Err(Interruption::Differs),
        }
    })
}

/// Until the sender has sent all, or the reception ends (`None`).
fn listen(
    watch: &dyn Watch,
    stream: &mut SenderStream,
    size: u64,
    watcher: &Watcher,
    receiving: &ScopedJoinHandle<'_, Result<(), BulkError>>,
) -> Option<Result<ContentHash, Interruption>> {
    let mut told = Instant::now();
    let mut newest = watcher.news();
    loop {
        if receiving.is_finished() {
            return None;
        }
        if told.elapsed() >= NEWS_PERIOD {
            told = Instant::now();
            if watcher.news() != newest
                && let Err(error) = report_arrivals(stream, watcher)
            {
                return Some(Err(Interruption::Stream(error)));
            }
            newest = watcher.news();
        }
        return Some(Err(match stream.poll() {
            Ok(None) if watch.is_stopped() => Interruption::Stream(BulkError::Stopped),
            Ok(None) => continue,
            Ok(Some(SenderMessage::Finish { size: sent, hash })) if sent == size => {
                return Some(Ok(hash));
            }
            Ok(Some(SenderMessage::Withdraw)) => Interruption::Withdrawn,
            Ok(Some(_)) => Interruption::Stream(BulkError::OutOfOrder),
            Err(error) => Interruption::Stream(error),
        }));
    }
}

/// Waits for data that is under way.
fn settle(
    watch: &dyn Watch,
    stream: &mut SenderStream,
    size: u64,
    watcher: &Watcher,
    receiving: &ScopedJoinHandle<'_, Result<(), BulkError>>,
) -> Result<(), Interruption> {
    let position = || watcher.position.load(Ordering::Acquire);
    let (mut newest, mut since) = (position(), Instant::now());
    while position() < size && !receiving.is_finished() {
        if watch.is_stopped() {
            return Err(Interruption::Stream(BulkError::Stopped));
        }
        match stream.poll_now().map_err(Interruption::Stream)? {
            None => {}
            Some(SenderMessage::Withdraw) => return Err(Interruption::Withdrawn),
            Some(_) => return Err(Interruption::Stream(BulkError::OutOfOrder)),
        }
        if position() != newest {
            (newest, since) = (position(), Instant::now());
        }
        if since.elapsed() >= SETTLE_TIME {
            return Err(Interruption::Stream(BulkError::Silent));
        }
        thread::sleep(SETTLE_CHECK_TIME);
    }
    Ok(())
}

fn report_arrivals(stream: &mut SenderStream, watcher: &Watcher) -> Result<(), BulkError> {
    if !stream.speaks(CONNECTIONS_VERSION) {
        return Ok(());
    }
    let (position, packets, predicted) = watcher.news();
    stream.send(&ReceiverMessage::Arrived {
        position,
        packets,
        predicted,
    })
}

/// Receives on each connection that comes, until the watcher ends the reception.
///
/// # Errors
/// A connection or the file fails; the reception ended before everything was there.
pub(super) fn receive_on_connections(
    expected: Expected<'_>,
    (key, arrivals): (&PacketKey, &Mutex<Arrivals>),
    file: &File,
    watcher: &Watcher,
) -> Result<(), BulkError> {
    // Of an earlier attempt all may be there.
    let position = locked(arrivals).position();
    watcher.on_progress(Progress {
        position,
        ..Progress::default()
    });
    let receive = |connection: TcpStream| {
        let copy = file.try_clone().map_err(BulkError::Sink)?;
        let mut sink = FileSink(copy);
        let transfer = (key, arrivals);
        receive_blasts(&connection, transfer, &mut sink, Placement::Copied, watcher)
    };
    let received = thread::scope(|scope| {
        // After an error the other connections end, too.
        let _end = EndOfConnections(watcher);
        let mut running = Vec::new();
        while !watcher.is_stopped() {
            match expected.connections.recv_timeout(CONNECTION_CHECK_TIME) {
                Ok(connection) => {
                    let builder = thread::Builder::new();
                    let thread = builder.spawn_scoped(scope, move || receive(connection));
                    // Without a thread the connection ends, and the attempt with it.
                    running.push(thread.doing("start a thread")?);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            let has_ended = |it: &mut ScopedJoinHandle<'_, _>| it.is_finished();
            let ended: Vec<_> = running.extract_if(.., has_ended).collect();
            let ended = ended.into_iter().try_for_each(joined);
            if ended.is_err() && !locked(arrivals).is_whole() {
                return ended;
            }
        }
        running.into_iter().try_for_each(joined)
    });
    // A connection may not have heard that its sender has ended it.
    let is_whole = locked(arrivals).is_whole();
    match (is_whole, received) {
        (true, _) => Ok(()),
        (false, Ok(())) => Err(BulkError::Stopped),
        (false, failed) => failed,
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Ends the reception, whatever happens.
struct EndOfReception<'a>(&'a Watcher);

impl Drop for EndOfReception<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
        self.0.hush();
    }
}

/// Ends the connections of a reception, whatever happens.
struct EndOfConnections<'a>(&'a Watcher);

impl Drop for EndOfConnections<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

/// Ends a reception, and tells its progress to the thread that hashes.
pub(super) struct Watcher {
    is_over: AtomicBool,
    /// Nobody wants the hash any more.
    gives_up: AtomicBool,
    position: AtomicU64,
    arrived: AtomicU64,
    predicted: AtomicU64,
    tell: Mutex<Option<mpsc::Sender<u64>>>,
}

impl Watcher {
    fn new(tell: mpsc::Sender<u64>) -> Self {
        Self {
            is_over: AtomicBool::new(false),
            gives_up: AtomicBool::new(false),
            position: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            predicted: AtomicU64::new(0),
            tell: Mutex::new(Some(tell)),
        }
    }

    /// Position, datagrams, and predicted datagrams.
    fn news(&self) -> (u64, u64, u64) {
        (
            self.position.load(Ordering::Acquire),
            self.arrived.load(Ordering::Relaxed),
            self.predicted.load(Ordering::Relaxed),
        )
    }

    /// No more progress comes.
    fn hush(&self) {
        *locked(&self.tell) = None;
    }
}

impl Supervisor for Watcher {
    fn is_stopped(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn on_progress(&self, progress: Progress) {
        self.position
            .fetch_max(progress.position, Ordering::Release);
        self.arrived.store(progress.arrived, Ordering::Relaxed);
        self.predicted.store(progress.predicted, Ordering::Relaxed);
        let tell = locked(&self.tell);
        if let Some(tell) = tell.as_ref() {
            let _ = tell.send(progress.position);
        }
    }
}
