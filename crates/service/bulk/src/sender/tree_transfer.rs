//! A tree from its first directory to its last.

use std::{mem, path::Path};

use protocol::bulk::{Entry, EntryKind};

use super::{ENTRIES_BYTES_MAX, ENTRIES_MAX, Item, NotStored, Part, Sender, Tree};
use crate::BulkError;

/// News of a tree that is sent.
pub enum TreeEvent<'a> {
    /// A larger file is sent now.
    Begins(&'a Item),
    /// A part is not sent.
    Skipped {
        /// The path.
        path: &'a Path,
        /// The reason.
        reason: &'static str,
    },
    /// A part could not be read.
    Unreadable {
        /// Where it is.
        path: &'a Path,
        /// Why not.
        error: &'a BulkError,
    },
    /// A receiver has not stored a part.
    NotStored {
        /// The receiver, by number.
        receiver: usize,
        /// Name of the part; `None`: the receiver is lost, and gets no more of the tree.
        name: Option<String>,
        /// Why not.
        error: &'a BulkError,
    },
    /// So much was sent so far.
    Progress(TreeReport),
}

/// A tree that was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeReport {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Parts that are neither, or links out of the tree.
    pub skipped: u64,
    /// Parts that could not be read, or that a receiver has not stored.
    pub failed: u64,
}

/// A tree on its way.
struct Transfer<'s, 'a> {
    sender: &'s mut Sender<'a>,
    on_event: &'s mut dyn FnMut(TreeEvent<'_>),
    /// Entries that leave with the next.
    entries: Vec<Entry>,
    bytes: usize,
    report: TreeReport,
}

/// As [`Sender::send_tree`].
pub(super) fn send(
    sender: &mut Sender<'_>,
    tree: Tree,
    on_event: &mut dyn FnMut(TreeEvent<'_>),
) -> TreeReport {
    let mut transfer = Transfer {
        sender,
        on_event,
        entries: Vec::new(),
        bytes: 0,
        report: TreeReport::default(),
    };
    transfer.run(tree);
    let report = transfer.report;
    let peers = &mut transfer.sender.peers;
    peers.iter_mut().for_each(|peer| peer.is_gone = false);
    report
}

impl Transfer<'_, '_> {
    fn run(&mut self, tree: Tree) {
        for part in tree {
            if self.is_over() {
                return;
            }
            match part {
                Part::Entry(entry) => self.add(entry),
                Part::File(item) => {
                    self.flush();
                    self.send(*item);
                }
                Part::Skipped { path, reason } => {
                    self.report.skipped += 1;
                    let path = &path;
                    (self.on_event)(TreeEvent::Skipped { path, reason });
                }
                Part::Failed { path, error } => {
                    self.report.failed += 1;
                    let (path, error) = (&path, &error);
                    (self.on_event)(TreeEvent::Unreadable { path, error });
                }
            }
        }
        self.flush();
    }

    fn is_over(&self) -> bool {
        self.sender.watch.is_stopped() || self.sender.peers.iter().all(|peer| peer.is_gone)
    }

    fn add(&mut self, entry: Entry) {
        let len = match &entry.kind {
            EntryKind::File { bytes } => bytes.len(),
            _ => 0,
        };
        if self.entries.len() >= ENTRIES_MAX || self.bytes + len > ENTRIES_BYTES_MAX {
            self.flush();
        }
        self.bytes += len;
        self.entries.push(entry);
    }

    fn flush(&mut self) {
        let entries = mem::take(&mut self.entries);
        self.bytes = 0;
        if entries.is_empty() || self.is_over() {
            return;
        }
        for entry in &entries {
            match &entry.kind {
                EntryKind::File { bytes } => {
                    self.report.files += 1;
                    self.report.bytes += u64::try_from(bytes.len()).unwrap_or(0);
                }
                EntryKind::DirectoryEnd => self.report.directories += 1,
                EntryKind::Link { .. } => self.report.links += 1,
                EntryKind::Directory => {}
            }
        }
        for failure in self.sender.send_entries(&entries) {
            let NotStored {
                receiver,
                entry,
                error,
            } = failure;
            let name = entry.map(|number| entries[number].name.to_string());
            self.fail(receiver, name, &error);
        }
        (self.on_event)(TreeEvent::Progress(self.report));
    }

    fn send(&mut self, mut item: Item) {
        if self.is_over() {
            return;
        }
        (self.on_event)(TreeEvent::Begins(&item));
        match self.sender.send(&mut item) {
            Ok(report) => {
                self.report.files += 1;
                self.report.bytes += report.size;
            }
            Err(errors) => {
                for (receiver, error) in errors {
                    let is_of_file = matches!(
                        error,
                        BulkError::Rejected { .. }
                            | BulkError::SourceChanged
                            | BulkError::Source(_)
                            | BulkError::Name(_)
                            | BulkError::Layout(_)
                    );
                    let name = is_of_file.then(|| item.name().to_string());
                    self.fail(receiver, name, &error);
                }
            }
        }
        (self.on_event)(TreeEvent::Progress(self.report));
    }

    fn fail(&mut self, receiver: usize, name: Option<String>, error: &BulkError) {
        self.report.failed += 1;
        self.sender.peers[receiver].is_gone |= name.is_none();
        (self.on_event)(TreeEvent::NotStored {
            receiver,
            name,
            error,
        });
    }
}
