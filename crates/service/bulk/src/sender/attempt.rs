//! An attempt to send a file to receivers.

use std::{
    collections::BTreeMap,
    fs::File,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZeroU16,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use blast::{BlastRanges, Layout};
use protocol::bulk::{
    Acceptance, BlastRange, CONNECTIONS_VERSION, Carrier, ContentHash, Offer, RANGES_MAX,
    ReceiverMessage, SecretKey, SenderMessage, Sizes,
};
use ring::rand::{SecureRandom, SystemRandom};

use super::{
    CONNECT_TIME, CarrierChoice, Event, Input, Item, Peer, ReceiverStream, Report, Sender, Watch,
    connections::{ConnectionTarget, Transmission},
    name_at,
    own_hashes::{OwnHashes, hash_of},
    pieces::Pieces,
    rejected,
    supervisor::{DataSupervisor, DatagramCounts},
};
use crate::{
    BulkError,
    carrier::{self, DataSocket, FileSource, Outgoing, PacketKey, Progress, Target, Transmitted},
    holes,
    keys::fresh_key,
    locks::locked,
};

/// Bytes of a blast, about.
const BLAST_BYTES: u32 = 256 << 10;
const COMPARED_BYTES_MIN: u32 = 64 << 10;
/// Blasts of a large file that is compared, about.
const COMPARED_BLASTS: u64 = 1 << 18;
/// Payload of a packet: at most that of a frame of 9000 bytes, at least that of the smallest packet of IPv6.
const PACKET_BYTES_MAX: u32 = 8900;
const PACKET_BYTES_MIN: u32 = 1180;
/// Headers of UDP, of a packet and its tag, less the header of TCP: how much smaller a payload is than a segment.
const OVERHEAD_LEN: u32 = 8 + 24 + 16 - 20;

/// Payload of a packet on a connection.
const CONNECTION_PACKET_BYTES: u32 = 32 << 10;
/// Smallest file that has connections of its own.
const CONNECTIONS_BYTES_MIN: u64 = 1 << 20;

/// Time for an answer; a receiver reads up to 256 MiB of an unfinished file before it answers.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// Time in which a receiver writes its cached pages to the disk.
pub(super) const STORING_TIME: Duration = Duration::from_secs(600);

/// Receivers that have stored the file, and receivers that have not.
#[derive(Default)]
pub(super) struct AttemptEnd {
    pub(super) report: Report,
    pub(super) failed: Vec<(usize, BulkError)>,
    /// Bytes have arrived.
    pub(super) has_begun: bool,
    /// Counts of the receivers.
    pub(super) counts: BTreeMap<usize, DatagramCounts>,
}

impl AttemptEnd {
    fn note(&mut self, supervisor: &DataSupervisor<'_>, agreements: &[Agreement]) {
        self.has_begun |= supervisor.has_advanced();
        for (peer, agreement) in agreements.iter().enumerate() {
            self.counts
                .insert(agreement.receiver, supervisor.counts(peer));
        }
    }

    fn has_failed(&self, receiver: usize) -> bool {
        self.failed.iter().any(|(failed, _)| *failed == receiver)
    }
}

/// A receiver that has accepted.
struct Agreement {
    receiver: usize,
    acceptance: Acceptance,
    /// Blasts that need not be sent.
    present: BlastRanges,
}

struct Plan {
    path: DataPath,
    layout: Layout,
    sizes: Sizes,
    holes: BlastRanges,
    key: SecretKey,
    transfer: u32,
}

/// How the data of an attempt travels.
enum DataPath {
    Datagrams(DataSocket),
    /// With a key for each receiver.
    Connections(BTreeMap<usize, SecretKey>),
    /// In the control stream: data without a known end, small files, receivers of an older version.
    Messages,
}

impl Sender<'_> {
    pub(super) fn attempt(&mut self, item: &mut Item, receivers: &[usize]) -> AttemptEnd {
        let mut end = AttemptEnd::default();
        let connected = self.connect(receivers, &mut end.failed);
        let sent = self.send_to(item, connected, &mut end);
        if let Err((error, waiting)) = sent {
            // The source or a socket of ours has failed: no receiver gets the file.
            let error = std::sync::Arc::new(error);
            for receiver in waiting {
                if end.has_failed(receiver) {
                    continue;
                }
                self.withdraw(receiver);
                end.failed.push((receiver, copy_of(&error)));
            }
        }
        end
    }

    /// Receivers with a stream.
    pub(super) fn connect(
        &mut self,
        receivers: &[usize],
        failed: &mut Vec<(usize, BulkError)>,
    ) -> Vec<usize> {
        let key = &self.settings.key;
        let numbered = self.peers.iter_mut().enumerate();
        let wanted = numbered.filter(|(receiver, _)| receivers.contains(receiver));
        // A receiver that is off costs the rest no time.
        let outcomes = at_the_same_time(wanted, |peer: &mut Peer| {
            if peer.stream.is_none() {
                let address = peer.destination.address;
                peer.stream = Some(ReceiverStream::connect(address, key, CONNECT_TIME)?);
            }
            Ok(())
        });
        let mut connected = Vec::new();
        for (receiver, outcome) in outcomes {
            match outcome {
                Ok(()) => connected.push(receiver),
                Err(error) => failed.push((receiver, error)),
            }
        }
        connected
    }

    fn send_to(
        &mut self,
        item: &mut Item,
        mut receivers: Vec<usize>,
        end: &mut AttemptEnd,
    ) -> Result<(), (BulkError, Vec<usize>)> {
        if receivers.is_empty() {
            return Ok(());
        }
        let is_stream = matches!(item.input, Input::Stream(_));
        loop {
            let uses_stream = is_stream
                || self.carrier == CarrierChoice::Stream
                || item.size == Some(0)
                || self.carrier == CarrierChoice::Auto && self.shares_address(&receivers);
            let path = self.way(item, &receivers, uses_stream);
            let plan = path.and_then(|path| self.plan(item, &receivers, path));
            let plan = plan.map_err(|error| (error, receivers.clone()))?;
            let mut agreements = self.negotiate(item, &plan, &receivers, &mut end.failed);
            if !uses_stream {
                self.leave_out_without_port(&mut agreements, &mut end.failed);
            }
            let agreed: Vec<usize> = agreements.iter().map(|it| it.receiver).collect();
            if agreed.is_empty() {
                return Ok(());
            }
            let before = end.failed.len();
            let sent = match &plan.path {
                DataPath::Datagrams(socket) => {
                    self.send_datagrams(item, &plan, socket, &agreements, end)
                }
                DataPath::Connections(_) => self.send_on_connections(item, &plan, &agreements, end),
                DataPath::Messages => {
                    let sent = self.send_pieces(item, &plan, &agreements, &mut end.failed);
                    sent.map(Some)
                }
            };
            match sent {
                Err(BulkError::NoDatagrams) if self.carrier == CarrierChoice::Auto => {
                    self.watch.on_event(Event::NoDatagrams);
                    self.carrier = CarrierChoice::Stream;
                    end.failed.truncate(before);
                    agreed.iter().for_each(|it| self.withdraw(*it));
                    receivers = agreed;
                }
                Err(error) => return Err((error, agreed)),
                // All receivers have failed.
                Ok(None) => return Ok(()),
                Ok(Some(_)) if item.has_changed() => {
                    return Err((BulkError::SourceChanged, agreed));
                }
                Ok(Some((size, hash))) => {
                    self.watch.on_event(Event::Sent);
                    end.report.size = size;
                    end.report.hash = hash.to_string();
                    self.finish(&agreed, size, hash, end);
                    let counts = end.counts.values().copied();
                    let counts = counts.fold(DatagramCounts::default(), DatagramCounts::plus);
                    (end.report.arrived, end.report.predicted) = (counts.packets, counts.predicted);
                    return Ok(());
                }
            }
        }
    }

    /// Whether two receivers are two names at one host: the answers of both would come from one port.
    fn shares_address(&self, receivers: &[usize]) -> bool {
        let address_of = |receiver: &usize| self.peers[*receiver].destination.address;
        let mut addresses: Vec<_> = receivers.iter().map(address_of).collect();
        addresses.sort_unstable();
        addresses.windows(2).any(|pair| pair[0] == pair[1])
    }

    fn way(
        &self,
        item: &Item,
        receivers: &[usize],
        uses_stream: bool,
    ) -> Result<DataPath, BulkError> {
        if !uses_stream {
            return Ok(DataPath::Datagrams(self.data_socket(receivers)?));
        }
        let mut streams = receivers
            .iter()
            .filter_map(|it| self.peers[*it].stream.as_ref());
        let is_known = streams.all(|stream| stream.speaks(CONNECTIONS_VERSION));
        let is_large = item.size.is_some_and(|size| size >= CONNECTIONS_BYTES_MIN);
        if !is_known || !is_large {
            return Ok(DataPath::Messages);
        }
        let keys = receivers.iter().map(|receiver| (*receiver, fresh_key()));
        Ok(DataPath::Connections(keys.collect()))
    }

    /// Payload of a packet, bytes.
    fn packet_bytes(&self, path: &DataPath, receivers: &[usize]) -> Result<u32, BulkError> {
        if matches!(path, DataPath::Connections(_)) {
            return Ok(CONNECTION_PACKET_BYTES);
        }
        let mut packet_bytes = PACKET_BYTES_MAX;
        for &receiver in receivers {
            if let Some(stream) = &self.peers[receiver].stream {
                let fits = stream.segment_size()?.saturating_sub(OVERHEAD_LEN);
                packet_bytes = packet_bytes.min(fits).max(PACKET_BYTES_MIN);
            }
        }
        Ok(packet_bytes)
    }

    /// Sizes for the path, holes, keys.
    fn plan(&self, item: &Item, receivers: &[usize], path: DataPath) -> Result<Plan, BulkError> {
        let packet_bytes = self.packet_bytes(&path, receivers)?;
        let blast_bytes = match self.settings.compares {
            true => compared_bytes(item.size.unwrap_or(0)),
            false => BLAST_BYTES,
        };
        let packets = (blast_bytes / packet_bytes).max(1);
        let layout = Layout::new(packet_bytes, packets)?;
        let blasts = layout.blasts(item.size.unwrap_or(0))?;
        let mut empty = BlastRanges::new();
        if let (Input::File(file), Some(size)) = (&item.input, item.size) {
            let with_data = holes::blasts_with_data(file, &layout, size);
            let all = holes::complement(&with_data.map_err(BulkError::Source)?, blasts);
            all.iter()
                .take(RANGES_MAX)
                .for_each(|(first, end)| empty.insert(first, end));
        }
        let mut transfer = [0; 4];
        let filled = SystemRandom::new().fill(&mut transfer);
        assert!(filled.is_ok(), "the system has no random numbers");
        Ok(Plan {
            path,
            layout,
            sizes: Sizes {
                packet_bytes,
                packets: layout.packets(),
            },
            holes: empty,
            key: fresh_key(),
            transfer: u32::from_le_bytes(transfer),
        })
    }

    fn data_socket(&self, receivers: &[usize]) -> Result<DataSocket, BulkError> {
        let first = self.peers[receivers[0]].destination.address;
        let any: IpAddr = match first.is_ipv6() {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        DataSocket::bind(SocketAddr::new(any, 0))
    }

    /// Offers the file to all, and learns which blasts each has.
    fn negotiate(
        &mut self,
        item: &Item,
        plan: &Plan,
        receivers: &[usize],
        failed: &mut Vec<(usize, BulkError)>,
    ) -> Vec<Agreement> {
        let mut offered = Vec::new();
        for &receiver in receivers {
            let offer = self.offer(item, plan, receiver);
            match offer.and_then(|offer| self.say(receiver, &SenderMessage::Offer(offer))) {
                Ok(()) => offered.push(receiver),
                Err(error) => self.fail(receiver, error, failed),
            }
        }
        let own = Mutex::new(OwnHashes::new(item, plan.layout));
        let watch = self.watch;
        let streams = self.peers.iter_mut().enumerate();
        let streams = streams.filter(|(receiver, _)| offered.contains(receiver));
        let streams = streams.filter_map(|(receiver, peer)| {
            let stream = peer.stream.as_mut()?;
            Some((receiver, (receiver, stream)))
        });
        // A receiver whose hashes are not read is blocked.
        let outcomes = at_the_same_time(streams, |(receiver, stream)| {
            agree(watch, stream, plan, receiver, &own)
        });
        let mut agreements = Vec::new();
        for (receiver, outcome) in outcomes {
            match outcome {
                Ok(agreement) => agreements.push(agreement),
                Err(error) => self.fail(receiver, error, failed),
            }
        }
        agreements
    }

    /// Of several receivers, a receiver without a UDP port gets the file by itself, in another attempt.
    fn leave_out_without_port(
        &mut self,
        agreements: &mut Vec<Agreement>,
        failed: &mut Vec<(usize, BulkError)>,
    ) {
        let has_port = |it: &Agreement| it.acceptance.port.is_some();
        if !agreements.iter().any(has_port) {
            return;
        }
        agreements.retain(|it| {
            if !has_port(it) {
                self.withdraw(it.receiver);
                failed.push((it.receiver, BulkError::NoDatagrams));
            }
            has_port(it)
        });
    }

    fn offer(&self, item: &Item, plan: &Plan, receiver: usize) -> Result<Offer, BulkError> {
        let destination = &self.peers[receiver].destination;
        let (sizes, holes) = (plan.sizes, ranges_of(&plan.holes));
        let carrier = match &plan.path {
            DataPath::Messages => Carrier::Stream { sizes, holes },
            DataPath::Connections(keys) => Carrier::Connections {
                key: *keys.get(&receiver).ok_or(BulkError::OutOfOrder)?,
                sizes,
                holes,
            },
            DataPath::Datagrams(socket) => Carrier::Datagrams {
                transfer: plan.transfer,
                port: NonZeroU16::new(socket.local()?.port()).unwrap_or(NonZeroU16::MIN),
                key: plan.key,
                sizes,
                holes,
            },
        };
        Ok(Offer {
            name: name_at(destination, &item.name, item.is_in_tree)?,
            size: item.size,
            permissions: item.permissions,
            modified_ns: item.modified_ns,
            carrier,
            compares: self.settings.compares,
            #[cfg(feature = "next-version")]
            next: 0,
        })
    }

    fn send_datagrams(
        &mut self,
        item: &Item,
        plan: &Plan,
        socket: &DataSocket,
        agreements: &[Agreement],
        end: &mut AttemptEnd,
    ) -> Result<Option<(u64, ContentHash)>, BulkError> {
        let (Input::File(file), Some(size)) = (&item.input, item.size) else {
            return Err(BulkError::OutOfOrder);
        };
        let mut targets = Vec::new();
        for agreement in agreements {
            // The address may have a scope (link-local IPv6).
            let mut address = self.peers[agreement.receiver].destination.address;
            let port = agreement.acceptance.port.ok_or(BulkError::NoDatagrams)?;
            address.set_port(port.get());
            targets.push(Target {
                address,
                key: PacketKey::Secret(agreement.acceptance.key.0),
                credit: agreement
                    .present
                    .first_gap(0)
                    .saturating_add(agreement.acceptance.ahead),
                present: agreement.present.clone(),
            });
        }
        let round_trip = self.peers.iter().filter_map(|it| it.stream.as_ref());
        let round_trip = round_trip.map(ReceiverStream::round_trip).max();
        let outgoing = Outgoing {
            key: PacketKey::Secret(plan.key.0),
            settings: blast::Settings {
                layout: plan.layout,
                transfer: plan.transfer,
                policy: self.settings.policy,
                rate_max: self.settings.rate_max,
                round_trip: round_trip.unwrap_or_default(),
                peer_timeout: self.settings.peer_timeout,
            },
            targets,
        };
        let copy = file.try_clone().map_err(BulkError::Source)?;
        let mut source = FileSource::of_size(copy, size);
        let supervisor = DataSupervisor::new(self.watch, agreements.len());
        let transmit = || match carrier::send(socket, outgoing, &mut source, &supervisor) {
            Err(BulkError::PeersLost) => Ok(Transmitted::default()),
            sent => sent,
        };
        let is_wanted = |sent: &Transmitted| !sent.complete.is_empty();
        let beside = (file, size, &supervisor);
        let (sent, hash) = self.send_beside(beside, agreements, transmit, is_wanted);
        end.note(&supervisor, agreements);
        let complete = match sent {
            Ok(transmitted) => {
                end.report.packets = (transmitted.packets, transmitted.needed);
                transmitted.complete
            }
            Err(BulkError::Source(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(BulkError::SourceChanged);
            }
            Err(error) => return Err(error),
        };
        for (peer, agreement) in agreements.iter().enumerate() {
            if !complete.contains(&peer) {
                let reason = supervisor.reason_of(peer).unwrap_or(BulkError::PeersLost);
                self.fail(agreement.receiver, reason, &mut end.failed);
            }
        }
        Ok(hash.map_err(BulkError::Source)?.map(|hash| (size, hash)))
    }

    fn send_on_connections(
        &mut self,
        item: &Item,
        plan: &Plan,
        agreements: &[Agreement],
        end: &mut AttemptEnd,
    ) -> Result<Option<(u64, ContentHash)>, BulkError> {
        let (Input::File(file), Some(size)) = (&item.input, item.size) else {
            return Err(BulkError::OutOfOrder);
        };
        let DataPath::Connections(keys) = &plan.path else {
            return Err(BulkError::OutOfOrder);
        };
        let targets = agreements.iter().filter_map(|agreement| {
            Some(ConnectionTarget {
                address: self.peers[agreement.receiver].destination.address,
                present: agreement.present.clone(),
                key: *keys.get(&agreement.receiver)?,
            })
        });
        let transmission = Transmission {
            settings: self.settings,
            layout: plan.layout,
            file,
            size,
            targets: targets.collect(),
        };
        let supervisor = DataSupervisor::new(self.watch, agreements.len());
        let transmit = || transmission.send(&supervisor);
        let is_wanted = |sent: &Vec<Result<_, _>>| sent.iter().any(Result::is_ok);
        let beside = (file, size, &supervisor);
        let (sent, hash) = self.send_beside(beside, agreements, transmit, is_wanted);
        end.note(&supervisor, agreements);
        for ((peer, agreement), sent) in agreements.iter().enumerate().zip(sent?) {
            if let Err(error) = sent {
                let reason = supervisor.reason_of(peer).unwrap_or(error);
                self.fail(agreement.receiver, reason, &mut end.failed);
            }
        }
        Ok(hash.map_err(BulkError::Source)?.map(|hash| (size, hash)))
    }

    /// Transmits, hashes, and listens to the receivers, each in a thread. Without a receiver that has all there is no
    /// hash.
    fn send_beside<T>(
        &mut self,
        (file, size, supervisor): (&File, u64, &DataSupervisor<'_>),
        agreements: &[Agreement],
        transmit: impl FnOnce() -> Result<T, BulkError>,
        is_wanted: impl FnOnce(&T) -> bool,
    ) -> (Result<T, BulkError>, std::io::Result<Option<ContentHash>>) {
        let streams = self.streams_of(agreements);
        thread::scope(|scope| {
            let hashing = scope.spawn(|| hash_of(file, size, supervisor.gives_up()));
            for (peer, stream) in streams.into_iter().enumerate() {
                scope.spawn(move || supervisor.listen(peer, stream));
            }
            let sent = transmit();
            let is_wanted = sent.as_ref().is_ok_and(is_wanted);
            supervisor.end(is_wanted);
            let hash = hashing.join();
            let hash = hash.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (sent, hash.map(|hash| hash.filter(|_| is_wanted)))
        })
    }

    fn send_pieces(
        &mut self,
        item: &mut Item,
        plan: &Plan,
        agreements: &[Agreement],
        failed: &mut Vec<(usize, BulkError)>,
    ) -> Result<(u64, ContentHash), BulkError> {
        let mut pieces = Pieces::new(item, plan.layout);
        let mut lost = Vec::new();
        let (begun, mut sent) = (Instant::now(), 0_u64);
        while let Some((position, bytes)) = pieces.next()? {
            if self.watch.is_stopped() {
                return Err(BulkError::Stopped);
            }
            for agreement in agreements {
                let receiver = agreement.receiver;
                if lost.contains(&receiver) || pieces.is_present(position, &agreement.present) {
                    continue;
                }
                let bytes = bytes.clone();
                sent += u64::try_from(bytes.len()).unwrap_or(0);
                if let Err(error) =
                    self.say_piece(receiver, SenderMessage::Piece { position, bytes })
                {
                    lost.push(receiver);
                    self.fail(receiver, error, failed);
                }
            }
            if let Some(rate) = self.settings.rate_max {
                #[expect(clippy::cast_precision_loss, reason = "a pause")]
                let due = Duration::from_secs_f64(sent as f64 / rate.max(1) as f64);
                thread::sleep(due.saturating_sub(begun.elapsed()));
            }
            let position = position + u64::try_from(bytes.len()).unwrap_or(0);
            self.watch.on_event(Event::Progress(Progress {
                position,
                ..Progress::default()
            }));
        }
        Ok(pieces.end())
    }

    /// A receiver that does not take the data any more says so, between two pieces or before it closes the stream.
    fn say_piece(&mut self, receiver: usize, piece: SenderMessage) -> Result<(), BulkError> {
        let stream = self.peers[receiver].stream.as_mut();
        match stream.ok_or(BulkError::Closed)?.poll_now()? {
            None => {}
            Some(ReceiverMessage::Rejected { reason, detail }) => {
                return Err(rejected(reason, detail));
            }
            Some(_) => return Err(BulkError::OutOfOrder),
        }
        let said = self.say(receiver, &piece);
        match said {
            Err(_) => match self.receive(receiver, Duration::ZERO) {
                Ok(ReceiverMessage::Rejected { reason, detail }) => Err(rejected(reason, detail)),
                _ => said,
            },
            Ok(()) => Ok(()),
        }
    }

    /// All data is there: each receiver checks the hash, and stores.
    fn finish(&mut self, receivers: &[usize], size: u64, hash: ContentHash, end: &mut AttemptEnd) {
        let mut finishing = Vec::new();
        for &receiver in receivers {
            if end.has_failed(receiver) {
                continue;
            }
            match self.say(receiver, &SenderMessage::Finish { size, hash }) {
                Ok(()) => finishing.push(receiver),
                Err(error) => self.fail(receiver, error, &mut end.failed),
            }
        }
        let AttemptEnd { failed, counts, .. } = end;
        for receiver in finishing {
            let until = Instant::now() + STORING_TIME;
            let mut answer = self.receive(receiver, STORING_TIME);
            while let Ok(ReceiverMessage::Arrived {
                packets, predicted, ..
            }) = answer
            {
                counts.insert(receiver, DatagramCounts { packets, predicted });
                answer = self.receive(receiver, until.saturating_duration_since(Instant::now()));
            }
            match answer {
                Ok(ReceiverMessage::Stored) => self.watch.on_event(Event::Stored {
                    receiver,
                    hash: hash.to_string(),
                }),
                Ok(ReceiverMessage::Rejected { reason, detail }) => {
                    self.fail(receiver, rejected(reason, detail), failed);
                }
                Ok(_) => self.fail(receiver, BulkError::OutOfOrder, failed),
                Err(error) => self.fail(receiver, error, failed),
            }
        }
    }

    /// The streams of these receivers, in order.
    fn streams_of(&mut self, agreements: &[Agreement]) -> Vec<&mut ReceiverStream> {
        let wanted: Vec<usize> = agreements.iter().map(|it| it.receiver).collect();
        let streams = self.peers.iter_mut().enumerate();
        let streams = streams.filter(|(number, _)| wanted.contains(number));
        streams
            .filter_map(|(_, peer)| peer.stream.as_mut())
            .collect()
    }

    pub(super) fn say(
        &mut self,
        receiver: usize,
        message: &SenderMessage,
    ) -> Result<(), BulkError> {
        let stream = self.peers[receiver].stream.as_mut();
        stream.ok_or(BulkError::Closed)?.send(message)
    }

    pub(super) fn receive(
        &mut self,
        receiver: usize,
        within: Duration,
    ) -> Result<ReceiverMessage, BulkError> {
        let watch = self.watch;
        let stream = self.peers[receiver].stream.as_mut();
        let stream = stream.ok_or(BulkError::Closed)?;
        stream.receive(within, &|| watch.is_stopped())
    }

    /// A receiver takes part no more. After a rejection its stream is still good.
    pub(super) fn fail(
        &mut self,
        receiver: usize,
        error: BulkError,
        failed: &mut Vec<(usize, BulkError)>,
    ) {
        if !matches!(error, BulkError::Rejected { .. }) {
            self.peers[receiver].stream = None;
        }
        failed.push((receiver, error));
    }

    /// Messages about the offer that were on their path are read and forgotten.
    fn withdraw(&mut self, receiver: usize) {
        let mut said = self.say(receiver, &SenderMessage::Withdraw);
        while said.is_ok() {
            said = match self.receive(receiver, ANSWER_TIME) {
                Ok(ReceiverMessage::Withdrawn) => return,
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
        }
        self.peers[receiver].stream = None;
    }
}

/// Does something with each of several receivers, in a thread for each. Returns the outcomes with the numbers.
fn at_the_same_time<P: Send, T: Send>(
    receivers: impl Iterator<Item = (usize, P)>,
    work: impl Fn(P) -> Result<T, BulkError> + Sync,
) -> Vec<(usize, Result<T, BulkError>)> {
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = receivers
            .map(|(number, receiver)| (number, scope.spawn(move || work(receiver))))
            .collect();
        let ended = running.into_iter().map(|(number, it)| {
            let outcome = it.join();
            let outcome = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (number, outcome)
        });
        ended.collect()
    })
}

/// Learns which blasts a receiver has, and waits until the receiver is ready for the others.
fn agree(
    watch: &dyn Watch,
    stream: &mut ReceiverStream,
    plan: &Plan,
    receiver: usize,
    own: &Mutex<OwnHashes<'_>>,
) -> Result<Agreement, BulkError> {
    let mut next = || stream.receive(ANSWER_TIME, &|| watch.is_stopped());
    let mut equal = BlastRanges::new();
    let acceptance = loop {
        match next()? {
            ReceiverMessage::Have { first, hashes } => {
                let mut own = locked(own);
                for (blast, hash) in (first..u32::MAX).zip(hashes) {
                    if own.is_equal(blast, hash)? {
                        equal.insert(blast, blast + 1);
                    }
                }
            }
            ReceiverMessage::Accept(acceptance) => break acceptance,
            ReceiverMessage::Rejected { reason, detail } => return Err(rejected(reason, detail)),
            _ => return Err(BulkError::OutOfOrder),
        }
    };
    let ranges: Vec<BlastRange> = ranges_of(&equal).into_iter().take(RANGES_MAX).collect();
    let mut present = plan.holes.clone();
    ranges
        .iter()
        .for_each(|it| present.insert(it.first, it.end));
    stream.send(&SenderMessage::Keep { ranges })?;
    let mut is_ready = !acceptance.prepares;
    while !is_ready {
        match stream.receive(ANSWER_TIME, &|| watch.is_stopped())? {
            ReceiverMessage::Prepares => {}
            ReceiverMessage::Ready => is_ready = true,
            ReceiverMessage::Rejected { reason, detail } => return Err(rejected(reason, detail)),
            _ => return Err(BulkError::OutOfOrder),
        }
    }
    let size = locked(own).size;
    watch.on_event(Event::Accepted {
        receiver,
        present: (present.count() * plan.layout.blast_bytes()).min(size),
    });
    Ok(Agreement {
        receiver,
        acceptance,
        present,
    })
}

/// An error of this end is an error for each receiver.
fn copy_of(error: &BulkError) -> BulkError {
    match error {
        BulkError::SourceChanged => BulkError::SourceChanged,
        BulkError::Stopped => BulkError::Stopped,
        BulkError::NoDatagrams => BulkError::NoDatagrams,
        BulkError::Source(error) => {
            BulkError::Source(std::io::Error::new(error.kind(), error.to_string()))
        }
        BulkError::Socket { doing, source } => BulkError::Socket {
            doing,
            source: std::io::Error::new(source.kind(), source.to_string()),
        },
        _ => BulkError::OutOfOrder,
    }
}

/// Bytes of a blast of a file that is compared: small blasts find more equal parts, and each costs a hash in memory.
fn compared_bytes(size: u64) -> u32 {
    let bytes = size / COMPARED_BLASTS;
    u32::try_from(bytes)
        .unwrap_or(BLAST_BYTES)
        .clamp(COMPARED_BYTES_MIN, BLAST_BYTES)
}

fn ranges_of(blasts: &BlastRanges) -> Vec<BlastRange> {
    let ranges = blasts.iter();
    ranges
        .map(|(first, end)| BlastRange { first, end })
        .collect()
}
