//! The receiving end: takes offers on connections, and stores files.

use std::{
    collections::HashSet,
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use channel::KeyRing;
use protocol::bulk::{
    ENTRY_LEN_MAX, Entry, EntryKind, Offer, Reason, ReceiverMessage, RelativePath, SecretKey,
    SenderMessage,
};

use self::{joins::Joins, quota::Quota};
use crate::{
    BulkError,
    directory::{Attributes, Directory, Rejection},
    error::SocketContext,
    locks::locked,
    stream::Stream,
};

mod joins;
mod quota;
mod reception;
mod storing;

/// Pause between two looks for unfinished files that nobody goes on with.
const EXPIRY_PERIOD: Duration = Duration::from_secs(3600);
/// Pause between two looks for new connections.
const ACCEPT_PERIOD: Duration = Duration::from_millis(50);
/// Connections beyond the transfers: of senders that have not proven the key, or wait.
const CONNECTION_COUNT_MORE: usize = 64;
/// A sender that says nothing for so long is gone.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(600);
/// Longest text of a rejection.
const DETAIL_LEN_MAX: usize = protocol::bulk::DETAIL_LEN_MAX;

pub(crate) type SenderStream = Stream<ReceiverMessage, SenderMessage>;

/// Settings of a receiver.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where files appear.
    pub directory: PathBuf,
    /// Accepted keys. A changed key file is read again for the next connection.
    pub keys: KeyRing,
    /// Most bytes of a file.
    pub size_max: Option<u64>,
    /// Most bytes of all files below the directory.
    pub quota: Option<u64>,
    /// A file is on the disk before its sender hears that it is stored.
    pub is_durable: bool,
    /// A file with the name of an older one replaces it.
    pub replaces: bool,
    /// Most transfers at once.
    pub transfers_max: usize,
    /// Unfinished files that nobody has written for so long are removed.
    pub keep_partial: Duration,
}

/// News of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A sender has connected.
    Connected {
        /// The sender.
        sender: SocketAddr,
    },
    /// A file is being received.
    Accepted {
        /// The sender.
        sender: SocketAddr,
        /// Name below the directory.
        name: String,
        /// Bytes, if the sender knows.
        size: Option<u64>,
        /// Bytes that were there from an earlier attempt.
        present: u64,
    },
    /// A file is there under its name.
    Stored {
        /// The sender.
        sender: SocketAddr,
        /// Name below the directory.
        name: String,
        /// Bytes.
        size: u64,
        /// BLAKE3, as `b3sum` prints.
        hash: String,
        /// Time since the offer, ms.
        milliseconds: u64,
    },
    /// An offer was not taken, or the file not stored.
    Rejected {
        /// The sender.
        sender: SocketAddr,
        /// Name below the directory.
        name: String,
        /// Reason.
        reason: String,
    },
    /// A connection has failed.
    Failed {
        /// The sender.
        sender: SocketAddr,
        /// Reason.
        reason: String,
    },
    /// Unfinished files have expired.
    Expired {
        /// How many.
        count: usize,
    },
}

/// What a receiver tells, and asks, from several threads.
pub trait Watch: Sync {
    /// Whether the receiver ends.
    fn is_stopped(&self) -> bool;
    /// Something has happened.
    fn on_event(&self, event: Event);
}

/// A receiver that listens.
#[derive(Debug)]
pub struct Receiver {
    listener: TcpListener,
    settings: Settings,
    directory: Directory,
    quota: Quota,
}

/// What all connections share.
struct Shared<'a> {
    settings: &'a Settings,
    directory: &'a Directory,
    quota: &'a Quota,
    watch: &'a dyn Watch,
    joins: Joins,
    transfers: AtomicUsize,
    connections: AtomicUsize,
    /// A file was stored.
    has_stored: AtomicBool,
    /// Files and directories that are not whole: a sender may come back. `None`: nobody asks.
    unfinished: Option<Mutex<HashSet<RelativePath>>>,
}

impl Receiver {
    /// Listens. Unfinished files that are too old are removed.
    ///
    /// # Errors
    /// The directory is missing, or the address is taken or not of this host.
    pub fn bind(listen: SocketAddr, settings: Settings) -> Result<Self, BulkError> {
        let directory = Directory::open(&settings.directory)?;
        let quota = Quota::new(settings.quota, &directory);
        let listener = TcpListener::bind(listen).doing("listen")?;
        listener.set_nonblocking(true).doing("listen")?;
        Ok(Self {
            listener,
            settings,
            directory,
            quota,
        })
    }

    /// The address that senders connect to.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn local(&self) -> Result<SocketAddr, BulkError> {
        self.listener.local_addr().doing("ask for an address")
    }

    /// Serves senders until the watch says stop; with `once`, until all senders have left, a file was stored,
    /// and none is unfinished.
    ///
    /// # Errors
    /// No connections can be accepted.
    pub fn run(&self, once: bool, watch: &dyn Watch) -> Result<(), BulkError> {
        let shared = Shared {
            settings: &self.settings,
            directory: &self.directory,
            quota: &self.quota,
            watch,
            joins: Joins::default(),
            transfers: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            has_stored: AtomicBool::new(false),
            unfinished: once.then(Mutex::default),
        };
        // Without a service manager nobody is told.
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
        let mut keys = self.settings.keys.clone();
        let mut expires_at = Instant::now();
        thread::scope(|scope| {
            while !watch.is_stopped() {
                if Instant::now() >= expires_at {
                    expires_at = Instant::now() + EXPIRY_PERIOD;
                    self.expire(watch);
                }
                match self.listener.accept() {
                    Ok((stream, sender)) => {
                        if let Err(error) = keys.reload_if_changed() {
                            tracing::warn!(%error, "the keys from before stay in use");
                        }
                        let (shared, keys) = (&shared, Arc::new(keys.clone()));
                        let most = self.settings.transfers_max + CONNECTION_COUNT_MORE;
                        if shared.connections.fetch_add(1, Ordering::AcqRel) >= most {
                            shared.connections.fetch_sub(1, Ordering::AcqRel);
                            continue;
                        }
                        let serve = move || shared.serve(stream, sender, keys);
                        if thread::Builder::new().spawn_scoped(scope, serve).is_err() {
                            shared.connections.fetch_sub(1, Ordering::AcqRel);
                        }
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        thread::sleep(ACCEPT_PERIOD);
                    }
                    // A connection that has ended before it was accepted.
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                    // Too many descriptors, or too little memory, for a moment.
                    Err(error) => {
                        tracing::warn!(%error, "a connection cannot be accepted");
                        thread::sleep(ACCEPT_PERIOD);
                    }
                }
                let is_idle = shared.connections.load(Ordering::Acquire) == 0;
                if once && is_idle && shared.is_complete() {
                    break;
                }
            }
            Ok(())
        })
    }

    fn expire(&self, watch: &dyn Watch) {
        let now = SystemTime::now();
        match self.directory.expire(self.settings.keep_partial, now) {
            // The quota counts again when it is reached.
            Ok(0) => {}
            Ok(count) => watch.on_event(Event::Expired { count }),
            Err(error) => tracing::warn!(%error, "unfinished files cannot be examined"),
        }
    }
}

impl Shared<'_> {
    fn serve(&self, stream: TcpStream, sender: SocketAddr, keys: Arc<KeyRing>) {
        let served = self.serve_stream(stream, sender, keys);
        self.connections.fetch_sub(1, Ordering::AcqRel);
        match served {
            Ok(()) | Err(BulkError::Stopped | BulkError::Closed) => {}
            Err(error) => self.watch.on_event(Event::Failed {
                sender,
                reason: error.to_string(),
            }),
        }
    }

    fn serve_stream(
        &self,
        stream: TcpStream,
        sender: SocketAddr,
        keys: Arc<KeyRing>,
    ) -> Result<(), BulkError> {
        stream.set_nonblocking(false).doing("accept a connection")?;
        let mut stream = SenderStream::accept(stream, keys)?;
        let mut is_told = false;
        let mut withdrawn = None;
        loop {
            let message = stream.receive(IDLE_TIME, &|| self.watch.is_stopped())?;
            if let SenderMessage::Join { key } = message {
                return self.join(stream, key);
            }
            if !is_told {
                is_told = true;
                self.watch.on_event(Event::Connected { sender });
            }
            // A sender that goes on has given the file up, or offers it again.
            if let Some(name) = withdrawn.take() {
                self.end(&name);
            }
            match message {
                SenderMessage::Offer(offer) => {
                    let name = offer.name.clone();
                    let is_withdrawn = self.take(&mut stream, sender, offer)?;
                    withdrawn = is_withdrawn.then_some(name);
                }
                SenderMessage::Entry(entry) => self.take_entry(&mut stream, sender, &entry)?,
                // Of an offer that was rejected in the meantime.
                SenderMessage::Withdraw => stream.send(&ReceiverMessage::Withdrawn)?,
                SenderMessage::Keep { .. }
                | SenderMessage::Piece { .. }
                | SenderMessage::Join { .. }
                | SenderMessage::Finish { .. } => {}
            }
        }
    }

    /// A file or a tree was stored, and nothing is unfinished.
    fn is_complete(&self) -> bool {
        let is_empty = |names: &Mutex<HashSet<_>>| locked(names).is_empty();
        self.has_stored.load(Ordering::Acquire) && self.unfinished.as_ref().is_none_or(is_empty)
    }

    /// A file or a directory begins. False: an earlier attempt, or another connection, has begun it.
    fn begin(&self, name: &RelativePath) -> bool {
        let names = self.unfinished.as_ref();
        names.is_none_or(|names| locked(names).insert(name.clone()))
    }

    /// The sender has nothing more to send of a file, or of a directory and its contents.
    fn end(&self, name: &RelativePath) {
        if let Some(names) = &self.unfinished {
            let is_below = |other: &RelativePath| {
                let rest = other.as_bytes().strip_prefix(name.as_bytes());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            };
            locked(names).retain(|other| !is_below(other));
        }
    }

    /// The connection becomes a data connection of a transfer.
    fn join(&self, mut stream: SenderStream, key: SecretKey) -> Result<(), BulkError> {
        let Some(connections) = self.joins.find(key) else {
            // The transfer is over, or has enough connections.
            let reason = Reason::Full;
            let detail = String::new();
            return stream.send(&ReceiverMessage::Rejected { reason, detail });
        };
        stream.send(&ReceiverMessage::Joined)?;
        // A transfer that ends now closes the connection.
        let _ = connections.send(stream.into_connection()?);
        Ok(())
    }

    /// Returns whether the sender has withdrawn the offer.
    fn take(
        &self,
        stream: &mut SenderStream,
        sender: SocketAddr,
        offer: Offer,
    ) -> Result<bool, BulkError> {
        let is_new = self.begin(&offer.name);
        let before = self.transfers.fetch_add(1, Ordering::AcqRel);
        let taken = match before >= self.settings.transfers_max {
            true => Ok(storing::Outcome::Rejected(Rejection::new(Reason::Full, ""))),
            false => storing::store(self, stream, sender, &offer),
        };
        self.transfers.fetch_sub(1, Ordering::AcqRel);
        let taken = match taken {
            Err(error) if !matches!(error, BulkError::Stopped) => {
                let reason = format!("{}: {error}", offer.name);
                self.watch.on_event(Event::Failed { sender, reason });
                // This is all that there is to say of the connection.
                return Err(BulkError::Closed);
            }
            taken => taken?,
        };
        match taken {
            storing::Outcome::Stored(event) => {
                self.watch.on_event(event);
                self.end(&offer.name);
                self.has_stored.store(true, Ordering::Release);
                stream.send(&ReceiverMessage::Stored)?;
                Ok(false)
            }
            storing::Outcome::Withdrawn => {
                stream.send(&ReceiverMessage::Withdrawn)?;
                Ok(true)
            }
            storing::Outcome::Rejected(rejection) => {
                if is_new {
                    self.end(&offer.name);
                }
                self.reject(stream, sender, offer.name.to_string(), rejection)?;
                Ok(false)
            }
        }
    }

    /// A part of a tree. Each file of a tree is whole when it gets its name.
    fn take_entry(
        &self,
        stream: &mut SenderStream,
        sender: SocketAddr,
        entry: &Entry,
    ) -> Result<(), BulkError> {
        let begun = Instant::now();
        let is_new = entry.kind == EntryKind::Directory && self.begin(&entry.name);
        let stored = self.store_entry(entry);
        if entry.kind == EntryKind::DirectoryEnd || is_new && stored.is_err() {
            self.end(&entry.name);
        }
        match (stored, &entry.kind) {
            (Err(rejection), _) => {
                return self.reject(stream, sender, entry.name.to_string(), rejection);
            }
            (Ok(()), EntryKind::File { bytes }) => self.watch.on_event(Event::Stored {
                sender,
                name: entry.name.to_string(),
                size: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
                hash: blake3::hash(bytes).to_string(),
                milliseconds: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            }),
            (Ok(()), _) => {}
        }
        self.has_stored.store(true, Ordering::Release);
        stream.send(&ReceiverMessage::Stored)
    }

    fn store_entry(&self, entry: &Entry) -> Result<(), Rejection> {
        let len = match &entry.kind {
            EntryKind::File { bytes } if bytes.len() > ENTRY_LEN_MAX => {
                return Err(Rejection::new(
                    Reason::Sizes,
                    "the file is too long for a message",
                ));
            }
            EntryKind::File { bytes } => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            EntryKind::Directory | EntryKind::DirectoryEnd | EntryKind::Link { .. } => 0,
        };
        self.check_size(len)?;
        let attributes = self.attributes(entry.permissions, entry.modified_ns);
        let moment = self.quota.moment();
        let store = || self.directory.store(entry, attributes);
        let replaced = self.quota.grow(len, self.directory, store)?;
        self.quota.give_back(replaced, moment);
        Ok(())
    }

    fn check_size(&self, size: u64) -> Result<(), Rejection> {
        match self.settings.size_max {
            Some(most) if size > most => {
                let detail = format!("{size} bytes, and at most {most} bytes are taken (--limit)");
                Err(Rejection::new(Reason::TooLarge, detail))
            }
            _ => Ok(()),
        }
    }

    const fn attributes(&self, permissions: u16, modified_ns: u64) -> Attributes {
        Attributes {
            permissions,
            modified_ns,
            is_durable: self.settings.is_durable,
            replaces: self.settings.replaces,
        }
    }

    fn reject(
        &self,
        stream: &mut SenderStream,
        sender: SocketAddr,
        name: String,
        rejection: Rejection,
    ) -> Result<(), BulkError> {
        let Rejection { reason, mut detail } = rejection;
        while detail.len() > DETAIL_LEN_MAX {
            detail.pop();
        }
        let words = BulkError::Rejected {
            reason,
            detail: detail.clone(),
        };
        self.watch.on_event(Event::Rejected {
            sender,
            name,
            reason: words.to_string(),
        });
        stream.send(&ReceiverMessage::Rejected { reason, detail })
    }
}
