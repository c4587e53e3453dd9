use std::collections::VecDeque;

use protocol::blast::{Acknowledgement, PacketHeader, PacketSet};

use crate::{BlastRanges, Layout, LayoutError, PacketId, flaws::Flaws};

/// How often the next packet was the packet that was expected (section 1 of the paper).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Predictions {
    /// Packets that were taken.
    pub packets: u64,
    /// Packets that followed the packet before.
    pub right: u64,
}

/// What a packet was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reception {
    /// The payload belongs at this packet's position. The packet counts as received now.
    Fresh(PacketId),
    /// The receiver had the packet.
    Duplicate,
    /// The receiver does not take the blast yet.
    WithoutCredit,
    /// No payload: the sender only asks.
    Probe,
}

/// A packet that no correct sender sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPacket {
    /// The packet belongs to another transfer.
    #[error("the packet belongs to transfer {0}")]
    Transfer(u32),
    /// The blast is behind the end of the transfer.
    #[error("blast {0} is behind the end of the transfer")]
    BehindEnd(u32),
    /// The blast has another number of packets.
    #[error("blast {blast} has {expected} packets, not {found}")]
    Count {
        /// The blast.
        blast: u32,
        /// Packets by the layout, or by an earlier packet.
        expected: u16,
        /// Packets by this packet.
        found: u16,
    },
    /// The payload has another length.
    #[error("the payload has {0} bytes")]
    Length(usize),
    /// Packets that have arrived contradict the size.
    #[error("the transfer cannot end at byte {0}")]
    End(u64),
}

/// A blast that is not whole, or whole and behind a blast that is not.
#[derive(Debug)]
struct Incoming {
    missing: PacketSet,
    count: u16,
    /// Payload of the last packet, if it has arrived: only the last of the transfer is shorter.
    last_len: Option<u32>,
}

/// A question of the sender.
#[derive(Debug, Clone, Copy)]
struct Question {
    blast: u32,
    round: u16,
    sent_us: u32,
}

/// The receiving end of a transfer.
///
/// For each packet that the caller has authenticated, [`Self::on_packet`] tells where the payload belongs. A payload
/// is in its place before the caller reports anything as whole; an acknowledgement may be sent before.
#[derive(Debug)]
pub struct Receiver {
    layout: Layout,
    transfer: u32,
    size: Option<u64>,
    whole_below: u32,
    /// Blasts from `whole_below` on.
    window: VecDeque<Incoming>,
    /// Blasts that were there at the beginning.
    present: BlastRanges,
    credit: u32,
    questions: VecDeque<Question>,
    /// The packet that follows the newest packet.
    next: PacketId,
    /// Blasts that became whole, and were not reported.
    whole: VecDeque<u32>,
    /// While the size is unknown: the newest blast of which a packet has arrived, and the end, by a short blast.
    seen: Seen,
    counts: Counts,
    flaws: Flaws,
}

/// Knowledge about the end of a transfer.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    highest: u32,
    /// The last blast: it has fewer packets, or a short packet.
    last: Option<u32>,
    end: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    acknowledgements: u32,
    predictions: Predictions,
    duplicates: u32,
    congestion: u32,
}

impl Receiver {
    /// Most questions that wait for an answer. Older questions are forgotten: the sender asks once more.
    const QUESTIONS_MAX: usize = 256;

    /// A transfer by this number, of which the blasts `present` are there. Blasts below `credit` are taken. `size` may
    /// be unknown until [`Self::finish`].
    ///
    /// # Errors
    /// The transfer has more bytes than blasts have numbers.
    pub fn new(
        layout: Layout,
        transfer: u32,
        size: Option<u64>,
        credit: u32,
        present: BlastRanges,
    ) -> Result<Self, LayoutError> {
        if let Some(size) = size {
            layout.blasts(size)?;
        }
        let whole_below = present.first_gap(0);
        Ok(Self {
            layout,
            transfer,
            size,
            whole_below,
            window: VecDeque::new(),
            present,
            credit,
            questions: VecDeque::new(),
            next: PacketId {
                blast: whole_below,
                packet: 0,
            },
            whole: VecDeque::new(),
            seen: Seen::default(),
            counts: Counts::default(),
            flaws: Flaws::default(),
        })
    }

    /// Plants mistakes.
    #[cfg(feature = "flaws")]
    pub const fn plant(&mut self, flaws: Flaws) {
        self.flaws = flaws;
    }

    /// All blasts below this number are whole.
    #[must_use]
    pub const fn whole_below(&self) -> u32 {
        self.whole_below
    }

    /// All data has arrived.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let size = self.size.map(|size| self.layout.blasts(size));
        size.is_some_and(|blasts| blasts.is_ok_and(|blasts| self.whole_below >= blasts))
    }

    /// Packets that the receiver had already.
    #[must_use]
    pub const fn duplicates(&self) -> u32 {
        self.counts.duplicates
    }

    /// Packets that were taken, and how many were expected. A blast that is there from the beginning is skipped.
    #[must_use]
    pub const fn predictions(&self) -> Predictions {
        self.counts.predictions
    }

    /// The next blast that became whole.
    pub fn poll_whole(&mut self) -> Option<u32> {
        self.whole.pop_front()
    }

    /// Blasts below `credit` are taken from now on. A sender that may have waited for credit is told at once.
    pub fn grant(&mut self, credit: u32) {
        if credit <= self.credit {
            return;
        }
        let begun = self.whole_below + u32::try_from(self.window.len()).unwrap_or(u32::MAX);
        if begun >= self.credit && self.questions.is_empty() {
            self.questions.push_back(Question {
                blast: Acknowledgement::NO_BLAST,
                round: 0,
                sent_us: 0,
            });
        }
        self.credit = credit;
    }

    /// Tells the sender once that everything is there. A receiver answers questions until the control stream says that
    /// the transfer is over: the sender may lack an acknowledgement.
    pub fn announce(&mut self) {
        self.questions.push_back(Question {
            blast: Acknowledgement::NO_BLAST,
            round: 0,
            sent_us: 0,
        });
    }

    /// The transfer has `size` bytes.
    ///
    /// # Errors
    /// A packet that has arrived contradicts the size.
    pub fn finish(&mut self, size: u64) -> Result<(), InvalidPacket> {
        let Ok(blasts) = self.layout.blasts(size) else {
            return Err(InvalidPacket::End(size));
        };
        if self.seen.end.is_some_and(|end| end != size) {
            return Err(InvalidPacket::End(size));
        }
        let begun = (self.whole_below..).zip(&self.window);
        for (number, incoming) in begun {
            if number >= blasts {
                return Err(InvalidPacket::BehindEnd(number));
            }
            let len = self.layout.blast_len(number, size);
            let (expected, found) = (self.layout.packets_of(len), incoming.count);
            if found != expected {
                let blast = number;
                return Err(InvalidPacket::Count {
                    blast,
                    expected,
                    found,
                });
            }
            let last = self.layout.packet_len(expected - 1, len);
            if let Some(found) = incoming.last_len.filter(|found| *found != last) {
                return Err(InvalidPacket::Length(usize::try_from(found).unwrap_or(0)));
            }
        }
        if self.whole_below > blasts {
            return Err(InvalidPacket::BehindEnd(self.whole_below - 1));
        }
        self.size = Some(size);
        Ok(())
    }

    /// A packet with a payload of `len` bytes has arrived. `is_marked`: with a mark of congestion.
    ///
    /// # Errors
    /// No correct sender sends such a packet. The packet does not count.
    pub fn on_packet(
        &mut self,
        header: &PacketHeader,
        len: usize,
        is_marked: bool,
    ) -> Result<Reception, InvalidPacket> {
        if header.transfer != self.transfer {
            return Err(InvalidPacket::Transfer(header.transfer));
        }
        let arrival = match header.is_probe() {
            true if len > 0 => return Err(InvalidPacket::Length(len)),
            true => Reception::Probe,
            false => self.count_packet(header, len)?,
        };
        self.counts.congestion = self.counts.congestion.wrapping_add(u32::from(is_marked));
        if header.asks {
            // An answer must not say that a blast is whole of which nothing was taken: the sender of a probe has not
            // begun the blast.
            let is_taken = matches!(arrival, Reception::Fresh(_) | Reception::Duplicate);
            let blast = match is_taken || !self.flaws.hides_blast_without_credit() {
                true => header.blast,
                false => Acknowledgement::NO_BLAST,
            };
            self.on_question(blast, header);
        }
        Ok(arrival)
    }

    /// The answer to the next question.
    pub fn poll_acknowledgement(&mut self) -> Option<Acknowledgement> {
        let Question {
            blast,
            round,
            sent_us,
        } = self.questions.pop_front()?;
        // A number that is used a second time would be a nonce that is: the transfer ends by the sender's timeout.
        self.counts.acknowledgements = self.counts.acknowledgements.checked_add(1)?;
        let missing = match self.incoming(blast) {
            Some(incoming) if !incoming.missing.is_empty() => incoming.missing.clone(),
            _ => PacketSet::default(),
        };
        Some(Acknowledgement {
            transfer: self.transfer,
            number: self.counts.acknowledgements,
            blast,
            round,
            sent_us,
            whole_below: self.whole_below,
            credit: self.credit,
            congestion: self.counts.congestion,
            duplicates: self.counts.duplicates,
            missing,
        })
    }

    /// The packets that are expected next, at most `count`, in `out`, which is empty: the packets behind the newest
    /// packet, without packets that are there. The list ends before a packet that is shorter than the others. While
    /// the size of the transfer is unknown, a packet may be received behind the end.
    ///
    /// The network rarely changes the order, and a sender does not interrupt a round. So after a loss, or when a blast
    /// is repeated in part, one prediction is wrong, and the next is right.
    pub fn expected(&self, count: usize, out: &mut Vec<PacketId>) {
        let end = match self.size.map(|size| self.layout.blasts(size)) {
            Some(Ok(blasts)) => blasts.min(self.credit),
            _ => self.credit,
        };
        // The blast of the newest packet may be whole by now: nothing may be received there.
        let PacketId { blast, packet } = self.next.max(PacketId {
            blast: self.whole_below,
            packet: 0,
        });
        let behind = (blast..end).map(|number| (number, if number == blast { packet } else { 0 }));
        let before = (self.whole_below..blast.saturating_add(1).min(end)).map(|number| (number, 0));
        for (number, first) in behind.chain(before) {
            if !self.expected_of(number, first, count, out) || out.len() >= count {
                return;
            }
        }
    }

    /// Appends packets of a blast. Returns whether the list may go on.
    fn expected_of(&self, number: u32, first: u16, count: usize, out: &mut Vec<PacketId>) -> bool {
        let (packets, full) = self.packets_of(number);
        let incoming = self.incoming(number);
        if incoming.is_none() && self.present.contains(number) {
            return true;
        }
        let mut next = first;
        while out.len() < count {
            let missing = match incoming {
                Some(incoming) if self.flaws.expects_missing_only() => {
                    incoming.missing.first_from(next)
                }
                _ => Some(next),
            };
            let Some(packet) = missing.filter(|packet| *packet < packets) else {
                return true;
            };
            let id = PacketId {
                blast: number,
                packet,
            };
            // The list has come around to its beginning, or a shorter packet is next.
            if packet >= full || out.first() == Some(&id) {
                return false;
            }
            out.push(id);
            next = packet + 1;
        }
        true
    }

    /// Packets of a blast, and how many have the full length.
    fn packets_of(&self, number: u32) -> (u16, u16) {
        let Some(size) = self.size else {
            return (self.layout.packets(), self.layout.packets());
        };
        let len = self.layout.blast_len(number, size);
        let full = len / u64::from(self.layout.packet_bytes());
        let packets = self.layout.packets_of(len);
        (packets, u16::try_from(full).unwrap_or(packets))
    }

    fn incoming(&self, number: u32) -> Option<&Incoming> {
        let index = number.checked_sub(self.whole_below)?;
        self.window.get(usize::try_from(index).ok()?)
    }

    fn count_packet(
        &mut self,
        header: &PacketHeader,
        len: usize,
    ) -> Result<Reception, InvalidPacket> {
        let PacketHeader {
            blast,
            packet,
            count,
            ..
        } = *header;
        if blast < self.whole_below || self.present.contains(blast) {
            self.counts.duplicates = self.counts.duplicates.wrapping_add(1);
            return Ok(Reception::Duplicate);
        }
        if blast >= self.credit {
            return Ok(Reception::WithoutCredit);
        }
        let len = self.check(header, len)?;
        self.note_end(header, len)?;
        self.begin_to(blast, count);
        let index = usize::try_from(blast - self.whole_below).unwrap_or(usize::MAX);
        let Some(incoming) = self.window.get_mut(index) else {
            return Ok(Reception::WithoutCredit);
        };
        if packet == count - 1 {
            incoming.last_len = Some(len);
        }
        let id = PacketId { blast, packet };
        if !incoming.missing.remove(packet) {
            self.counts.duplicates = self.counts.duplicates.wrapping_add(1);
            return Ok(Reception::Duplicate);
        }
        if incoming.missing.len() <= self.flaws.missing_in_whole() {
            incoming.missing = PacketSet::empty(count);
            self.whole.push_back(blast);
        }
        let predictions = &mut self.counts.predictions;
        predictions.packets += 1;
        predictions.right += u64::from(id == self.next);
        self.next = match packet + 1 < count {
            true => PacketId {
                blast,
                packet: packet + 1,
            },
            false => PacketId {
                blast: blast.saturating_add(1),
                packet: 0,
            },
        };
        self.advance();
        Ok(Reception::Fresh(id))
    }

    /// Number of packets and length of a packet agree with the layout, and with earlier packets. Returns the length.
    fn check(&self, header: &PacketHeader, len: usize) -> Result<u32, InvalidPacket> {
        let PacketHeader {
            blast,
            packet,
            count,
            ..
        } = *header;
        let full = self.layout.packet_bytes();
        let (expected, last) = match (self.size, self.incoming(blast)) {
            (Some(size), _) => {
                let of = self.layout.blast_len(blast, size);
                if of == 0 {
                    return Err(InvalidPacket::BehindEnd(blast));
                }
                let expected = self.layout.packets_of(of);
                (expected, Some(self.layout.packet_len(expected - 1, of)))
            }
            (None, Some(incoming)) => (incoming.count, incoming.last_len),
            (None, None) => (count.min(self.layout.packets()), None),
        };
        if count != expected {
            return Err(InvalidPacket::Count {
                blast,
                expected,
                found: count,
            });
        }
        let payload = u32::try_from(len).map_err(|_| InvalidPacket::Length(len))?;
        let is_right = match (packet + 1 < count, last) {
            (true, _) => payload == full,
            (false, Some(last)) => payload == last,
            (false, None) => (1..=full).contains(&payload),
        };
        is_right
            .then_some(payload)
            .ok_or(InvalidPacket::Length(len))
    }

    /// While the size is unknown, a short blast tells the end. No blast is behind it.
    fn note_end(&mut self, header: &PacketHeader, len: u32) -> Result<(), InvalidPacket> {
        if self.size.is_some() {
            return Ok(());
        }
        let PacketHeader {
            blast,
            packet,
            count,
            ..
        } = *header;
        let is_last_packet = packet + 1 == count;
        let is_short = count < self.layout.packets() || len < self.layout.packet_bytes();
        let behind = match self.seen.last {
            Some(last) if blast > last => Some(blast),
            _ if is_short && self.seen.highest > blast => Some(self.seen.highest),
            _ => None,
        };
        if let Some(behind) = behind {
            return Err(InvalidPacket::BehindEnd(behind));
        }
        self.seen.highest = self.seen.highest.max(blast);
        if is_short {
            self.seen.last = Some(blast);
            if is_last_packet {
                let start = self.layout.position(PacketId { blast, packet });
                self.seen.end = Some(start + u64::from(len));
            }
        }
        Ok(())
    }

    /// Makes room for the packets of a blast.
    fn begin_to(&mut self, blast: u32, count: u16) {
        let mut number = self.whole_below + u32::try_from(self.window.len()).unwrap_or(u32::MAX);
        while number <= blast {
            let is_present = self.present.contains(number);
            let count = match (number == blast, self.size) {
                (true, _) => count,
                (false, Some(size)) => self.layout.packets_of(self.layout.blast_len(number, size)),
                (false, None) => self.layout.packets(),
            };
            self.window.push_back(Incoming {
                missing: match is_present {
                    true => PacketSet::empty(count),
                    false => PacketSet::full(count),
                },
                count,
                last_len: None,
            });
            number += 1;
        }
    }

    /// Whole blasts at the beginning leave the window.
    fn advance(&mut self) {
        while self.window.front().is_some_and(|it| it.missing.is_empty()) {
            self.window.pop_front();
            self.whole_below += 1;
        }
        if self.window.is_empty() {
            self.whole_below = self.present.first_gap(self.whole_below);
        }
    }

    fn on_question(&mut self, blast: u32, header: &PacketHeader) {
        if self.questions.len() == Self::QUESTIONS_MAX {
            self.questions.pop_front();
        }
        self.questions.push_back(Question {
            blast,
            round: header.round,
            sent_us: header.sent_us,
        });
    }
}
