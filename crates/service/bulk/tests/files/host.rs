//! A receiver and a sender in this process.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use blast::Policy;
use bulk::{
    BulkError,
    receiver::{self, Receiver},
    sender::{self, CarrierChoice, Destination, Item, Sender},
};
use channel::{Key, KeyRing};
use tempfile::TempDir;

/// A receiver in threads of this process.
pub(crate) struct Host {
    pub(crate) directory: TempDir,
    pub(crate) address: SocketAddr,
    watch: Arc<ReceiverWatch>,
    thread: Option<thread::JoinHandle<Result<(), BulkError>>>,
}

#[derive(Default)]
pub(crate) struct ReceiverWatch {
    is_stopped: AtomicBool,
    events: Mutex<Vec<receiver::Event>>,
}

impl receiver::Watch for ReceiverWatch {
    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn on_event(&self, event: receiver::Event) {
        self.events.lock().expect("no panic").push(event);
    }
}

impl Host {
    pub(crate) fn start(key: &Key) -> Self {
        Self::start_with(key, |_| {})
    }

    pub(crate) fn start_with(key: &Key, change: impl FnOnce(&mut receiver::Settings)) -> Self {
        Self::launch(key, false, change)
    }

    /// A receiver that ends by itself.
    pub(crate) fn start_once(key: &Key) -> Self {
        Self::launch(key, true, |_| {})
    }

    fn launch(key: &Key, once: bool, change: impl FnOnce(&mut receiver::Settings)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut settings = receiver::Settings {
            directory: directory.path().to_owned(),
            keys: KeyRing::of(vec![key.clone()]),
            size_max: None,
            quota: None,
            is_durable: true,
            replaces: true,
            transfers_max: 8,
            keep_partial: Duration::from_secs(3600),
        };
        change(&mut settings);
        let any = "127.0.0.1:0".parse().expect("an address");
        let receiver = Receiver::bind(any, settings).expect("a receiver");
        let address = receiver.local().expect("an address");
        let watch = Arc::new(ReceiverWatch::default());
        let watched = Arc::clone(&watch);
        let thread = thread::spawn(move || receiver.run(once, &*watched));
        Self {
            directory,
            address,
            watch,
            thread: Some(thread),
        }
    }

    /// Waits until the receiver has ended by itself.
    pub(crate) fn await_end(&mut self) {
        let thread = self.thread.take().expect("a receiver that runs");
        thread.join().expect("no panic").expect("no error");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn to(&self) -> Destination {
        Destination {
            address: self.address,
            name: None,
        }
    }

    pub(crate) fn events(&self) -> Vec<receiver::Event> {
        self.watch.events.lock().expect("no panic").clone()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.watch.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !thread::panicking() {
                ended.expect("no panic").expect("no error");
            }
        }
    }
}

/// Stops the sender behind so many bytes.
pub(crate) struct SenderWatch {
    stops_at: AtomicU64,
    pub(crate) position: AtomicU64,
    events: Mutex<Vec<sender::Event>>,
}

impl SenderWatch {
    pub(crate) fn new(stops_at: u64) -> Self {
        Self {
            stops_at: AtomicU64::new(stops_at),
            position: AtomicU64::new(0),
            events: Mutex::default(),
        }
    }

    /// Reasons of further attempts.
    pub(crate) fn retries(&self) -> Vec<String> {
        let events = self.events.lock().expect("no panic");
        let retries = events.iter().filter_map(|event| match event {
            sender::Event::Retry { reason, .. } => Some(reason.clone()),
            _ => None,
        });
        retries.collect()
    }

    pub(crate) fn lacked_datagrams(&self) -> bool {
        let events = self.events.lock().expect("no panic");
        events.contains(&sender::Event::NoDatagrams)
    }

    pub(crate) fn present(&self) -> Vec<u64> {
        let events = self.events.lock().expect("no panic");
        let present = events.iter().filter_map(|event| match event {
            sender::Event::Accepted { present, .. } => Some(*present),
            _ => None,
        });
        present.collect()
    }
}

impl sender::Watch for SenderWatch {
    fn is_stopped(&self) -> bool {
        self.position.load(Ordering::Relaxed) >= self.stops_at.load(Ordering::Relaxed)
    }

    fn on_event(&self, event: sender::Event) {
        if let sender::Event::Progress(progress) = event {
            self.position
                .fetch_max(progress.position, Ordering::Relaxed);
        } else {
            self.events.lock().expect("no panic").push(event);
        }
    }
}

pub(crate) fn key() -> Key {
    Key::generate("test").expect("random numbers")
}

pub(crate) fn settings(key: &Key) -> sender::Settings {
    sender::Settings {
        key: key.clone(),
        policy: Policy::Full,
        rate_max: None,
        peer_timeout: Duration::from_secs(10),
        retry: Duration::ZERO,
        carrier: CarrierChoice::Datagrams,
        connections: 4,
        compares: false,
    }
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let words = (0..len.div_ceil(8)).flat_map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 17).to_le_bytes()
    });
    words.take(len).collect()
}

pub(crate) fn source(data: &[u8]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("image");
    fs::write(&path, data).expect("space");
    (directory, path)
}

pub(crate) type Sent = Result<sender::Report, Vec<(usize, BulkError)>>;

pub(crate) fn send(
    path: &Path,
    to: Vec<Destination>,
    settings: &sender::Settings,
    watch: &SenderWatch,
) -> Sent {
    let mut item = Item::open(path).expect("a file");
    Sender::new(to, settings, watch).send(&mut item)
}
