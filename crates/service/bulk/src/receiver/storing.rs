//! A file from the offer to its name.

use std::{
    fs::File,
    net::SocketAddr,
    num::NonZeroU16,
    os::unix::fs::{FileExt, MetadataExt as _},
    sync::{Mutex, atomic::AtomicBool, mpsc},
    time::{Duration, Instant},
};

use blast::{BlastRanges, Layout, connections::Arrivals};
use protocol::bulk::{
    Acceptance, BlastHash, BlastRange, Carrier, ContentHash, HASHES_MAX, Offer, PIECE_LEN_MAX,
    Reason, ReceiverMessage, SecretKey, SenderMessage, Sizes,
};
use rustix::{fs::copy_file_range, io::Errno, process::geteuid};

use super::{
    Event, IDLE_TIME, SenderStream, Shared,
    reception::{self, Interruption, Watcher},
};
use crate::{
    BulkError,
    carrier::{self, DataSocket, FileSink, Incoming, PacketKey, Placement},
    directory::{Partial, Rejection},
    hashes, holes,
    keys::fresh_key,
    sender::modified_ns,
};

/// Bytes that the sender may send beyond the whole blasts.
const CREDIT_BYTES: u64 = 64 << 20;
/// Smallest blasts of a sender.
const BLAST_BYTES_MIN: u64 = 32 << 10;
/// Period in which the sender hears that parts are still copied.
const PREPARES_PERIOD: Duration = Duration::from_secs(5);
/// Fewest blasts of credit.
const CREDIT_MIN: u32 = 16;

/// The end of an offer.
pub(super) enum Outcome {
    /// The file is there under its name.
    Stored(Event),
    /// The sender has withdrawn the offer.
    Withdrawn,
    /// The receiver does not take the offer, or could not store the file.
    Rejected(Rejection),
}

/// Why an offer is not carried out: a rejection leaves the stream usable.
enum Failure {
    Rejected(Rejection),
    Withdrawn,
    Stream(BulkError),
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl From<BulkError> for Failure {
    fn from(error: BulkError) -> Self {
        Self::Stream(error)
    }
}

pub(super) fn store(
    shared: &Shared<'_>,
    stream: &mut SenderStream,
    sender: SocketAddr,
    offer: &Offer,
) -> Result<Outcome, BulkError> {
    let begun = Instant::now();
    match Storing::new(shared, offer).and_then(|storing| storing.run(stream, sender)) {
        Ok((size, hash)) => Ok(Outcome::Stored(Event::Stored {
            sender,
            name: offer.name.to_string(),
            size,
            hash: hash.to_string(),
            milliseconds: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        })),
        Err(Failure::Rejected(rejection)) => Ok(Outcome::Rejected(rejection)),
        Err(Failure::Withdrawn) => Ok(Outcome::Withdrawn),
        Err(Failure::Stream(error)) => Err(error),
    }
}

struct Storing<'a> {
    shared: &'a Shared<'a>,
    offer: &'a Offer,
    layout: Layout,
    partial: Partial,
    /// Blasts that the file has already: holes, and blasts that the sender confirms.
    present: BlastRanges,
    base: Option<Base>,
}

/// The file that has the name now, and may have equal parts.
struct Base {
    file: File,
    size: u64,
    /// Blasts of which the hash was that of this file.
    offered: BlastRanges,
    /// The receiver may set its permissions, and no other name has the file.
    is_own: bool,
    /// The file is equal to the offered file: no byte is written.
    is_equal: bool,
}

impl<'a> Storing<'a> {
    fn new(shared: &'a Shared<'a>, offer: &'a Offer) -> Result<Self, Failure> {
        let (sizes, offered) = match &offer.carrier {
            Carrier::Datagrams { sizes, holes, .. }
            | Carrier::Connections { sizes, holes, .. }
            | Carrier::Stream { sizes, holes } => (*sizes, holes.as_slice()),
        };
        let layout = layout_of(sizes)?;
        let size = offer.size.unwrap_or(0);
        let blasts = layout.blasts(size);
        let blasts = blasts.map_err(|error| Rejection::new(Reason::Sizes, error.to_string()))?;
        shared.check_size(size)?;
        let mut this = Self {
            shared,
            offer,
            layout,
            partial: shared
                .directory
                .partial(&offer.name, shared.settings.replaces)?,
            present: ranges_of(offered, blasts)?,
            base: Base::of(shared, offer),
        };
        this.prepare(size)?;
        Ok(this)
    }

    /// Gives the unfinished file its size, and its holes.
    fn prepare(&mut self, size: u64) -> Result<(), Rejection> {
        let Shared {
            quota, directory, ..
        } = self.shared;
        let file = &self.partial.file;
        let before = file.metadata().map_or(0, |it| it.len());
        let moment = quota.moment();
        if self.offer.size.is_none() {
            self.partial.resize(0)?;
            quota.give_back(before, moment);
            return Ok(());
        }
        // Before the part has its size: a rejected offer leaves no part that counts.
        let there = holes::blasts_with_data(file, &self.layout, size).map_err(unreadable)?;
        let blasts = self.layout.blasts(size).unwrap_or(0);
        let mut needless = there;
        self.present
            .iter()
            .for_each(|(first, end)| needless.insert(first, end));
        let missing = holes::complement(&needless, blasts).count() * self.layout.blast_bytes();
        let (needed, free) = (missing.min(size), directory.free_bytes()?);
        if needed > free {
            let detail = format!("{needed} more bytes are needed, and {free} are free");
            return Err(Rejection::new(Reason::NoSpace, detail));
        }
        let more = size.saturating_sub(before);
        quota.grow(more, directory, || self.partial.resize(size))?;
        quota.give_back(before.saturating_sub(size), moment);
        if holes::punch(file, &self.layout, size, &self.present).is_err() {
            // A file system that makes no holes in data: all anew.
            self.partial.resize(0)?;
            self.partial.resize(size)?;
        }
        Ok(())
    }

    fn run(
        mut self,
        stream: &mut SenderStream,
        sender: SocketAddr,
    ) -> Result<(u64, ContentHash), Failure> {
        self.send_have_list(stream)?;
        let (size, hash) = match &self.offer.carrier {
            Carrier::Datagrams {
                transfer,
                port,
                key,
                ..
            } => self.receive_datagrams(stream, sender, (*transfer, *port, *key))?,
            Carrier::Connections { key, .. } => self.receive_connections(stream, sender, *key)?,
            Carrier::Stream { .. } => {
                let received = self.receive_pieces(stream, sender);
                if received.is_err() && self.offer.size.is_none() {
                    // The bytes of a stream do not come a second time.
                    self.discard();
                }
                received?
            }
        };
        let offer = self.offer;
        let attributes = self.shared.attributes(offer.permissions, offer.modified_ns);
        let directory = self.shared.directory;
        let moment = self.shared.quota.moment();
        match &self.base {
            Some(base) if base.is_equal => {
                if !directory.is_named(&offer.name, &base.file) {
                    return Err(Rejection::new(Reason::Busy, "the file was replaced").into());
                }
                directory.set_attributes(&base.file, attributes)?;
                if attributes.is_durable {
                    directory.sync_path(offer.name.split().0.unwrap_or_default())?;
                }
                self.discard();
            }
            _ => {
                let replaced = directory.commit(&self.partial, &offer.name, attributes)?;
                self.shared.quota.give_back(replaced, moment);
            }
        }
        Ok((size, hash))
    }

    /// Removes the part.
    fn discard(&self) {
        let moment = self.shared.quota.moment();
        let len = self.partial.file.metadata().map_or(0, |it| it.len());
        self.shared.directory.discard(&self.partial);
        self.shared.quota.give_back(len, moment);
    }

    /// The file with the data.
    fn data(&self) -> &File {
        match &self.base {
            Some(base) if base.is_equal => &base.file,
            _ => &self.partial.file,
        }
    }

    /// Hashes of the blasts that have data from an earlier attempt, and of the other blasts of the file that has the
    /// name now. The sender decides which are right.
    fn send_have_list(&mut self, stream: &mut SenderStream) -> Result<(), Failure> {
        let Some(size) = self.offer.size else {
            return Ok(());
        };
        let file = &self.partial.file;
        let with_data = holes::blasts_with_data(file, &self.layout, size).map_err(unreadable)?;
        self.send_hashes(stream, file, size, &with_data)?;
        let Some(base) = &self.base else {
            return Ok(());
        };
        let blasts = self.layout.blasts(size).unwrap_or(0);
        // Blasts that lie within both files as a whole; the last one if the files have the same size.
        let common = match base.size == size {
            true => blasts,
            false => {
                let whole = base.size.min(size) / self.layout.blast_bytes();
                u32::try_from(whole).unwrap_or(0).min(blasts)
            }
        };
        let mut known = with_data;
        self.present
            .iter()
            .for_each(|(first, end)| known.insert(first, end));
        let mut offered = BlastRanges::new();
        for (first, end) in holes::complement(&known, blasts).iter() {
            if first < common {
                offered.insert(first, end.min(common));
            }
        }
        self.send_hashes(stream, &base.file, size, &offered)?;
        if let Some(base) = &mut self.base {
            base.offered = offered;
        }
        Ok(())
    }

    fn send_hashes(
        &self,
        stream: &mut SenderStream,
        file: &File,
        size: u64,
        blasts: &BlastRanges,
    ) -> Result<(), Failure> {
        for (first, end) in blasts.iter() {
            let mut hashes: Vec<BlastHash> = Vec::new();
            for blast in first..end {
                let hash = hashes::of_blast(file, &self.layout, size, blast);
                hashes.push(hash.map_err(unreadable)?);
                if hashes.len() == HASHES_MAX || blast + 1 == end {
                    let first = blast + 1 - u32::try_from(hashes.len()).unwrap_or(0);
                    let hashes = std::mem::take(&mut hashes);
                    stream.send(&ReceiverMessage::Have { first, hashes })?;
                }
            }
        }
        Ok(())
    }

    /// Blasts that the sender confirms, and that the old file has, come from there.
    fn take_from_base(
        &mut self,
        stream: &mut SenderStream,
        confirmed: &BlastRanges,
    ) -> Result<(), Failure> {
        let watch = self.shared.watch;
        let Some(base) = &mut self.base else {
            return Ok(());
        };
        let size = self.offer.size.unwrap_or(0);
        let blasts = self.layout.blasts(size).unwrap_or(0);
        let is_whole = confirmed.first_gap(0) >= blasts && base.offered.count() > 0;
        let has_part = holes::blasts_with_data(&self.partial.file, &self.layout, size);
        let has_part = has_part.map_err(storage)?.count() > 0;
        let is_offered = base.offered.count() == u64::from(blasts);
        if is_whole && base.size == size && !has_part && is_offered && base.is_own {
            base.is_equal = true;
            return Ok(());
        }
        let mut told = Instant::now();
        for (first, end) in confirmed.iter() {
            for blast in (first..end).filter(|it| base.offered.contains(*it)) {
                if watch.is_stopped() {
                    return Err(BulkError::Stopped.into());
                }
                if told.elapsed() >= PREPARES_PERIOD {
                    told = Instant::now();
                    stream.send(&ReceiverMessage::Prepares)?;
                }
                let position = self.layout.blast_position(blast);
                let len = self.layout.blast_len(blast, size);
                let (from, to) = (&base.file, &self.partial.file);
                copy_range(from, to, position, len).map_err(storage)?;
            }
        }
        Ok(())
    }

    /// Accepts the offer, and hears which blasts need not be sent.
    fn agree(
        &mut self,
        stream: &mut SenderStream,
        sender: SocketAddr,
        port: Option<NonZeroU16>,
        key: SecretKey,
    ) -> Result<(), Failure> {
        let credit = u32::try_from(CREDIT_BYTES / self.layout.blast_bytes()).unwrap_or(u32::MAX);
        let prepares = self
            .base
            .as_ref()
            .is_some_and(|base| base.offered.count() > 0);
        stream.send(&ReceiverMessage::Accept(Acceptance {
            port,
            prepares,
            key,
            ahead: credit.max(CREDIT_MIN),
            #[cfg(feature = "next-version")]
            next: 0,
        }))?;
        let blasts = self.layout.blasts(self.offer.size.unwrap_or(0));
        match self.next(stream)? {
            SenderMessage::Keep { ranges } => {
                let confirmed = ranges_of(&ranges, blasts.unwrap_or(0))?;
                self.take_from_base(stream, &confirmed)?;
                if prepares {
                    stream.send(&ReceiverMessage::Ready)?;
                }
                for (first, end) in confirmed.iter() {
                    self.present.insert(first, end);
                }
            }
            _ => return Err(out_of_order()),
        }
        let present = self.present.count() * self.layout.blast_bytes();
        self.shared.watch.on_event(Event::Accepted {
            sender,
            name: self.offer.name.to_string(),
            size: self.offer.size,
            present: present.min(self.offer.size.unwrap_or(0)),
        });
        Ok(())
    }

    /// The next message of the sender about this offer.
    fn next(&self, stream: &mut SenderStream) -> Result<SenderMessage, Failure> {
        // A stream of bytes may pause for as long as its source does: a host that is gone is noticed by TCP.
        let within = match self.offer.size {
            Some(_) => IDLE_TIME,
            None => Duration::MAX,
        };
        match stream.receive(within, &|| self.shared.watch.is_stopped())? {
            SenderMessage::Withdraw => Err(Failure::Withdrawn),
            message => Ok(message),
        }
    }

    fn receive_datagrams(
        &mut self,
        stream: &mut SenderStream,
        sender: SocketAddr,
        (transfer, port, key): (u32, NonZeroU16, SecretKey),
    ) -> Result<(u64, ContentHash), Failure> {
        let Some(size) = self.offer.size else {
            return Err(out_of_order());
        };
        // The address may have a scope (link-local IPv6).
        let mut from = stream.peer()?;
        from.set_port(port.get());
        let answer_key = fresh_key();
        let socket = match data_socket(stream, from) {
            Ok((socket, own)) => {
                self.agree(stream, sender, own, answer_key)?;
                socket
            }
            // The sender offers the file again, by the control stream.
            Err(error) => {
                tracing::warn!(%error, "no UDP port for a transfer");
                self.agree(stream, sender, None, answer_key)?;
                return self.next(stream).and(Err(out_of_order()));
            }
        };
        let incoming = Incoming {
            transfer,
            sender: from,
            key: PacketKey::Secret(key.0),
            answer_key: PacketKey::Secret(answer_key.0),
            layout: self.layout,
            size,
            ahead: u32::try_from(CREDIT_BYTES / self.layout.blast_bytes())
                .unwrap_or(u32::MAX)
                .max(CREDIT_MIN),
            present: self.present.clone(),
            placement: Placement::Copied,
        };
        let copy = self.data().try_clone();
        let mut sink = FileSink(copy.map_err(storage)?);
        let wanted = self.receive_beside(stream, size, |watcher| {
            carrier::receive(&socket, incoming, &mut sink, watcher).map(drop)
        })?;
        Ok((size, wanted))
    }

    /// Packets on connections of their own.
    fn receive_connections(
        &mut self,
        stream: &mut SenderStream,
        sender: SocketAddr,
        key: SecretKey,
    ) -> Result<(u64, ContentHash), Failure> {
        let Some(size) = self.offer.size else {
            return Err(out_of_order());
        };
        let expected = self.shared.joins.expect(key).ok_or_else(out_of_order)?;
        self.agree(stream, sender, None, fresh_key())?;
        let arrivals = Arrivals::new(self.layout, size, self.present.clone());
        let arrivals = Mutex::new(arrivals.map_err(BulkError::from)?);
        let key = PacketKey::Secret(key.0);
        let file = self.data();
        let wanted = self.receive_beside(stream, size, move |watcher| {
            reception::receive_on_connections(expected, (&key, &arrivals), file, watcher)
        })?;
        Ok((size, wanted))
    }

    fn receive_beside(
        &self,
        stream: &mut SenderStream,
        size: u64,
        receive: impl FnOnce(&Watcher) -> Result<(), BulkError> + Send,
    ) -> Result<ContentHash, Failure> {
        let watch = self.shared.watch;
        let received = reception::receive_beside(watch, stream, (self.data(), size), receive);
        received.map_err(|interruption| match interruption {
            Interruption::Withdrawn => Failure::Withdrawn,
            Interruption::Differs => self.differs().into(),
            Interruption::Storage(error) => storage(error).into(),
            Interruption::Stream(error) => error.into(),
        })
    }

    fn receive_pieces(
        &mut self,
        stream: &mut SenderStream,
        sender: SocketAddr,
    ) -> Result<(u64, ContentHash), Failure> {
        self.agree(stream, sender, None, fresh_key())?;
        let most = self.offer.size.or(self.shared.settings.size_max);
        loop {
            match self.next(stream)? {
                SenderMessage::Piece { position, bytes } if bytes.len() <= PIECE_LEN_MAX => {
                    let end = position.saturating_add(u64::try_from(bytes.len()).unwrap_or(0));
                    if most.is_some_and(|most| end > most) {
                        let detail = "the data has more bytes than the receiver takes (--limit)";
                        return Err(Rejection::new(Reason::TooLarge, detail).into());
                    }
                    let file = &self.partial.file;
                    let more = end.saturating_sub(file.metadata().map_err(storage)?.len());
                    let write = || file.write_all_at(&bytes, position).map_err(storage);
                    let directory = self.shared.directory;
                    self.shared.quota.grow(more, directory, write)?;
                }
                SenderMessage::Finish { size, hash } => {
                    return self.check_whole(size, hash).map_err(Into::into);
                }
                _ => return Err(out_of_order()),
            }
        }
    }

    fn check_whole(&self, size: u64, wanted: ContentHash) -> Result<(u64, ContentHash), Rejection> {
        let file = self.data();
        let len = file.metadata().map_err(storage)?.len();
        let (tell, below) = mpsc::channel();
        let _ = tell.send(size);
        let hash = match len == size {
            true => {
                hashes::of_growing(file, size, &below, &AtomicBool::new(false)).map_err(storage)?
            }
            false => None,
        };
        match hash {
            Some(hash) if hash == wanted => Ok((size, hash)),
            _ => Err(self.differs()),
        }
    }

    /// The part is of no use: the next attempt begins anew.
    fn differs(&self) -> Rejection {
        self.discard();
        Rejection::new(Reason::Differs, "")
    }
}

impl Base {
    /// The sender wants a comparison; or the file has the size and the time of the offered file, and is probably equal.
    fn of(shared: &Shared<'_>, offer: &Offer) -> Option<Self> {
        let offered = offer.size.filter(|size| *size > 0)?;
        let file = shared.directory.existing(&offer.name)?;
        let metadata = file.metadata().ok()?;
        let is_same = (metadata.len(), modified_ns(&metadata)) == (offered, offer.modified_ns);
        (offer.compares || is_same).then(|| Self {
            file,
            size: metadata.len(),
            offered: BlastRanges::new(),
            is_own: metadata.uid() == geteuid().as_raw() && metadata.nlink() == 1,
            is_equal: false,
        })
    }
}

/// A socket for the packets of a sender, and its port.
fn data_socket(
    stream: &SenderStream,
    from: SocketAddr,
) -> Result<(DataSocket, Option<NonZeroU16>), BulkError> {
    let socket = DataSocket::bind_shared(stream.local()?)?;
    socket.connect(from)?;
    let port = NonZeroU16::new(socket.local()?.port());
    Ok((socket, port))
}

/// The same bytes at the same place of another file; on file systems that share blocks, without a copy.
fn copy_range(from: &File, to: &File, position: u64, len: u64) -> std::io::Result<()> {
    let (mut source, mut target) = (position, position);
    while target < position + len {
        let left = usize::try_from(position + len - target).unwrap_or(usize::MAX);
        match copy_file_range(from, Some(&mut source), to, Some(&mut target), left) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn unreadable(error: std::io::Error) -> Rejection {
    Rejection::new(Reason::Storage, format!("read a file: {error}"))
}

fn out_of_order() -> Failure {
    Failure::Stream(BulkError::OutOfOrder)
}

fn storage(error: std::io::Error) -> Rejection {
    Rejection::of_storage("the file", error)
}

fn layout_of(sizes: Sizes) -> Result<Layout, Rejection> {
    let layout = Layout::new(sizes.packet_bytes, sizes.packets.into());
    let layout = layout.map_err(|error| Rejection::new(Reason::Sizes, error.to_string()))?;
    match layout.blast_bytes() {
        // Each blast under way costs memory, and a hash.
        ..BLAST_BYTES_MIN => Err(Rejection::new(Reason::Sizes, "the blasts are too small")),
        _ => Ok(layout),
    }
}

/// Ranges that a peer has told, below `blasts`.
fn ranges_of(ranges: &[BlastRange], blasts: u32) -> Result<BlastRanges, Rejection> {
    let mut all = BlastRanges::new();
    for range in ranges {
        if range.first >= range.end || range.end > blasts {
            return Err(Rejection::new(Reason::Sizes, "a range lies behind the end"));
        }
        all.insert(range.first, range.end);
    }
    Ok(all)
}
