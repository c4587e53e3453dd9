//! The sending end: offers files to receivers, and sends them.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use blast::Policy;
use channel::Key;
use protocol::bulk::{PathError, Reason, ReceiverMessage, RelativePath, SenderMessage};

use self::attempt::AttemptEnd;

use crate::{BulkError, carrier::Progress, stream::Stream};

mod attempt;
mod connections;
mod entries;
mod own_hashes;
mod pieces;
mod supervisor;
mod tree;
mod tree_transfer;

pub use entries::{ENTRIES_BYTES_MAX, ENTRIES_MAX, NotStored};
pub use tree::{Part, Tree};
pub use tree_transfer::{TreeEvent, TreeReport};

/// Time for a connection to a receiver.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const STOP_CHECK_TIME: Duration = Duration::from_millis(50);

pub(crate) type ReceiverStream = Stream<SenderMessage, ReceiverMessage>;

/// A receiver, and a name there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The receiver.
    pub address: SocketAddr,
    /// The name below its directory; `None`: that of the source.
    pub name: Option<RelativePath>,
}

/// Where the bytes come from.
pub enum Input {
    /// A file or a block device, which can be read at any place.
    File(File),
    /// Bytes that come one after the other.
    Stream(Box<dyn Read + Send>),
}

/// What is sent.
pub struct Item {
    input: Input,
    name: RelativePath,
    /// The first component of the name is that of a tree.
    is_in_tree: bool,
    size: Option<u64>,
    permissions: u16,
    modified_ns: u64,
}

impl Item {
    /// A file or a block device.
    ///
    /// # Errors
    /// The file cannot be read, or is neither.
    pub fn open(path: &Path) -> Result<Self, BulkError> {
        let words = "neither a file nor a block device: send it as standard input";
        let neither = || BulkError::Source(io::Error::other(words));
        let before = std::fs::metadata(path).map_err(BulkError::Source)?;
        // To open a FIFO would wait for a writer.
        if before.file_type().is_fifo() {
            return Err(neither());
        }
        let mut file = File::open(path).map_err(BulkError::Source)?;
        let metadata = file.metadata().map_err(BulkError::Source)?;
        let kind = metadata.file_type();
        let size = match kind.is_block_device() {
            true => file.seek(SeekFrom::End(0)).map_err(BulkError::Source)?,
            false if kind.is_file() => metadata.len(),
            false => return Err(neither()),
        };
        let name = path.file_name().unwrap_or_default();
        Ok(Self {
            name: RelativePath::new(name.as_encoded_bytes())?,
            is_in_tree: false,
            size: Some(size),
            permissions: u16::try_from(metadata.mode() & 0o777).unwrap_or(0),
            modified_ns: modified_ns(&metadata),
            input: Input::File(file),
        })
    }

    /// Bytes that come one after the other.
    #[must_use]
    pub fn stream(input: Box<dyn Read + Send>, name: RelativePath) -> Self {
        Self {
            input: Input::Stream(input),
            name,
            is_in_tree: false,
            size: None,
            permissions: 0o644,
            modified_ns: 0,
        }
    }

    /// Name of the source.
    #[must_use]
    pub const fn name(&self) -> &RelativePath {
        &self.name
    }

    /// Bytes, if known.
    #[must_use]
    pub const fn size(&self) -> Option<u64> {
        self.size
    }

    fn has_changed(&self) -> bool {
        let Input::File(file) = &self.input else {
            return false;
        };
        file.metadata().is_ok_and(|metadata| {
            metadata.is_file()
                && (Some(metadata.len()), modified_ns(&metadata)) != (self.size, self.modified_ns)
        })
    }
}

pub(crate) fn modified_ns(metadata: &std::fs::Metadata) -> u64 {
    let seconds = u64::try_from(metadata.mtime()).unwrap_or(0);
    let rest = u64::try_from(metadata.mtime_nsec()).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// How the data travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarrierChoice {
    /// In datagrams; where none pass, by TCP.
    Auto,
    /// In datagrams.
    Datagrams,
    /// By TCP.
    Stream,
}

/// Settings of a sender.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The key.
    pub key: Key,
    /// How fast.
    pub policy: Policy,
    /// Most bytes in a second, if any.
    pub rate_max: Option<u64>,
    /// A receiver is deemed to have failed after this time without an answer.
    pub peer_timeout: Duration,
    /// How long a receiver that is gone is waited for.
    pub retry: Duration,
    /// How the data travels.
    pub carrier: CarrierChoice,
    /// Most TCP connections to a receiver for the data of a file.
    pub connections: u8,
    /// Parts that a file of the same name has already are not sent.
    pub compares: bool,
}

/// News of a sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A receiver takes the file.
    Accepted {
        /// The receiver, by number.
        receiver: usize,
        /// Bytes that were there from an earlier attempt, or are holes.
        present: u64,
    },
    /// How far the transfer is.
    Progress(Progress),
    /// All data has arrived; the receivers store it.
    Sent,
    /// A receiver has stored the file.
    Stored {
        /// The receiver, by number.
        receiver: usize,
        /// BLAKE3, as `b3sum` prints.
        hash: String,
    },
    /// An attempt has failed, and the next will come.
    Retry {
        /// The receiver, by number.
        receiver: usize,
        /// Reason.
        reason: String,
    },
    /// No datagrams pass: the data travels by TCP.
    NoDatagrams,
}

/// What a sender tells, and asks, from several threads.
pub trait Watch: Sync {
    /// Whether the sender ends.
    fn is_stopped(&self) -> bool;
    /// Something has happened.
    fn on_event(&self, event: Event);
}

/// A file that was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Bytes of the file.
    pub size: u64,
    /// Packets that were sent, and packets that are needed without losses.
    pub packets: (u64, u64),
    /// Datagrams that the receivers have taken, as far as they tell.
    pub arrived: u64,
    /// Datagrams of these that the receivers had expected next.
    pub predicted: u64,
    /// BLAKE3, as `b3sum` prints.
    pub hash: String,
}

/// The sender of files to one or several receivers.
pub struct Sender<'a> {
    settings: &'a Settings,
    watch: &'a dyn Watch,
    peers: Vec<Peer>,
    carrier: CarrierChoice,
}

struct Peer {
    destination: Destination,
    stream: Option<ReceiverStream>,
    /// Gets no more of the tree that is sent.
    is_gone: bool,
}

impl<'a> Sender<'a> {
    /// A sender to these receivers, at most 64.
    ///
    /// # Panics
    /// If there are more.
    #[must_use]
    pub fn new(
        destinations: Vec<Destination>,
        settings: &'a Settings,
        watch: &'a dyn Watch,
    ) -> Self {
        assert!(destinations.len() <= blast::PeerSet::PEERS_MAX);
        let peer = |destination| Peer {
            destination,
            stream: None,
            is_gone: false,
        };
        Self {
            settings,
            watch,
            peers: destinations.into_iter().map(peer).collect(),
            carrier: settings.carrier,
        }
    }

    /// Sends an item to all receivers.
    ///
    /// # Errors
    /// For each receiver, by number, that has not stored the item: why.
    pub fn send(&mut self, item: &mut Item) -> Result<Report, Vec<(usize, BulkError)>> {
        let mut report = Report::default();
        // Of a stream the first bytes are gone.
        let repeats = !matches!(item.input, Input::Stream(_));
        let failed = self.repeat(repeats, |this, waiting| {
            let outcome = this.attempt(item, waiting);
            if !outcome.report.hash.is_empty() {
                report = outcome.report.clone();
            }
            outcome
        });
        match failed.is_empty() {
            true => Ok(report),
            false => Err(failed),
        }
    }

    /// Sends a tree to all receivers. A part that fails costs no other part; a receiver that is lost gets no more.
    pub fn send_tree(&mut self, tree: Tree, on_event: &mut dyn FnMut(TreeEvent<'_>)) -> TreeReport {
        tree_transfer::send(self, tree, on_event)
    }

    /// Attempts, until no receiver is left for which another one could help.
    fn repeat(
        &mut self,
        repeats: bool,
        mut attempt: impl FnMut(&mut Self, &[usize]) -> AttemptEnd,
    ) -> Vec<(usize, BulkError)> {
        let there = self.peers.iter().enumerate();
        let there = there.filter(|(_, peer)| !peer.is_gone);
        let mut waiting: Vec<usize> = there.map(|(number, _)| number).collect();
        let mut failed = Vec::new();
        let mut progress_at = Instant::now();
        while !waiting.is_empty() {
            let begun = Instant::now();
            let outcome = attempt(self, &waiting);
            if outcome.has_begun {
                progress_at = Instant::now();
            }
            waiting.clear();
            let is_late = progress_at.elapsed() >= self.settings.retry;
            for (receiver, error) in outcome.failed {
                let is_automatic = self.settings.carrier == CarrierChoice::Auto;
                let may_pass =
                    error.is_passing() || (is_automatic && matches!(error, BulkError::NoDatagrams));
                if is_late || !repeats || !may_pass || self.watch.is_stopped() {
                    failed.push((receiver, error));
                    continue;
                }
                let reason = error.to_string();
                self.watch.on_event(Event::Retry { receiver, reason });
                waiting.push(receiver);
            }
            waiting.sort_unstable();
            waiting.dedup();
            while !waiting.is_empty() && begun.elapsed() < RETRY_PAUSE {
                thread::sleep(STOP_CHECK_TIME);
            }
        }
        failed
    }
}

/// The name at a receiver: a destination's name stands for that of a file, or for that of a tree.
fn name_at(
    destination: &Destination,
    name: &RelativePath,
    is_in_tree: bool,
) -> Result<RelativePath, PathError> {
    let Some(instead) = &destination.name else {
        return Ok(name.clone());
    };
    let slash = name.as_bytes().iter().position(|byte| *byte == b'/');
    match slash.filter(|_| is_in_tree) {
        Some(slash) => instead.join(&RelativePath::new(&name.as_bytes()[slash + 1..])?),
        None => Ok(instead.clone()),
    }
}

fn rejected(reason: Reason, detail: String) -> BulkError {
    BulkError::Rejected { reason, detail }
}
