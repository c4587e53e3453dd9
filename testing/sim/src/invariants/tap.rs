//! The wire between the server's host and the network: every packet that leaves is looked at.

use wire::SynOptions;

use super::{
    Fault, Flags, FlowKey, GivenUp, InvariantChecker, IpPacket, LARGE_STREAM_BYTES, Segment,
    SeqNumber, SocketAddr, Violation, ensure, index,
};

impl InvariantChecker {
    /// A packet leaves for a client; `ours` if the recovery made the packet.
    pub(crate) fn leaves(&mut self, packet: &[u8], ours: bool) -> Result<(), Violation> {
        let packet = IpPacket::parse(packet).map_err(|error| Violation::new(error.to_string()))?;
        let segment = Segment::of(&packet).map_err(|error| Violation::new(error.to_string()))?;
        let client = SocketAddr::new(packet.destination(), segment.destination_port());
        let gate_shut = self.gate_shut;
        let Some(seen) = self
            .by_address
            .get(&client)
            .and_then(|i| self.seen.get_mut(*i))
        else {
            return Err(Violation(format!(
                "a packet leaves for a stranger: {client}"
            )));
        };
        let key = seen.key;
        if ours && segment.flags().contains(Flags::RST) {
            // A client that was gone before the reset receives the RST in vain.
            return ensure(seen.given_up != GivenUp::Nothing, || {
                format!("{key} is reset but not lost")
            });
        }
        if ours && segment.payload_len() > 0 {
            return seen.asked(&segment);
        }
        // A statement about the record is true for any incarnation.
        let of_the_record = ours && segment.sequence_len() == 0;
        ensure(!gate_shut || seen.closed_by_server || of_the_record, || {
            describe(key, "leaves behind the gate", &segment)
        })?;
        let syn = segment.flags().contains(Flags::SYN);
        if syn && seen.server_isn != Some(segment.seq()) {
            // A client that has no connection yet may be answered by another life.
            ensure(!seen.established, || {
                describe(key, "begins another connection", &segment)
            })?;
            seen.began_again |= seen.restarted;
            if seen.given_up == GivenUp::Handshake {
                seen.given_up = GivenUp::Nothing;
            }
            seen.client_isn = Some(segment.ack() - 1);
            seen.server_isn = Some(segment.seq());
            seen.tsval = None;
            seen.orphaned = false;
        }
        if segment.flags().contains(Flags::RST) && seen.has_all() {
            // A rebooted host does not know a connection that was over for the server. For the client the connection
            // is over, too, except for the client's own end.
            seen.finished = true;
            return Ok(());
        }
        if segment.flags().contains(Flags::RST)
            && seen.restarted
            && self.fault == Fault::RecordLimit
            && (seen.doomed || seen.recorded() > LARGE_STREAM_BYTES)
        {
            seen.given_up = GivenUp::Connection; // the connection had no record any more
            seen.doomed = true;
            return Ok(());
        }
        let stray = segment.flags().contains(Flags::RST) && seen.has_reset();
        ensure(
            !seen.orphaned || seen.is_lost() || of_the_record || stray,
            || describe(key, "leaves though it is not spliced", &segment),
        )?;
        if segment.flags().contains(Flags::RST) {
            // Without a crash, too, this is the answer to old segments after the end.
            return ensure(seen.gone || seen.finished || seen.is_lost(), || {
                describe(key, "is a reset", &segment)
            });
        }
        // While a server still replays the determinants, the client may know of more than the record has. The client
        // then takes a zero-window ACK for an old segment, without an effect.
        let has_cursors = self.north.is_some_and(|north| north.spare_copies.is_some());
        let waits = segment.window() == 0 && segment.sequence_len() == 0;
        if !(has_cursors && seen.restarted && waits && seen.knows_more_than(&segment)) {
            seen.check_numbers(&segment)?;
        }
        let Some(isn) = seen.server_isn else {
            return Err(Violation(describe(
                key,
                "belongs to no connection",
                &segment,
            )));
        };
        if segment.sequence_len() > 0 && !syn {
            seen.check_bytes(isn, &segment)?;
        }
        Ok(())
    }
}

/// The wire between the clients and the network.
impl InvariantChecker {
    /// This has come to a client.
    pub(crate) fn comes(&mut self, client: usize, packet: &[u8]) -> Result<(), Violation> {
        let Ok(packet) = IpPacket::parse(packet) else {
            return Ok(());
        };
        let seen = &mut self.seen[client];
        let (Ok(segment), Some(isn)) = (Segment::of(&packet), seen.server_isn) else {
            return Ok(());
        };
        let at = index(segment.seq().0.wrapping_sub(isn.0).wrapping_sub(1));
        let had = seen.has.and_then(|had| had.distance_from(segment.seq()));
        let payload = segment.payload().iter().enumerate();
        let taken = payload.take(seen.window_from(segment.seq()));
        for (i, byte) in taken.skip(had.map_or(0, index)) {
            seen.hears(at.wrapping_add(i), *byte)?;
        }
        Ok(())
    }

    /// A client has sent this.
    pub(crate) fn client_says(&mut self, packet: &[u8]) {
        let Ok(packet) = IpPacket::parse(packet) else {
            return;
        };
        let Ok(segment) = Segment::of(&packet) else {
            return;
        };
        let client = SocketAddr::new(packet.source(), segment.source_port());
        let seen = self.by_address.get(&client);
        let Some(seen) = seen.and_then(|i| self.seen.get_mut(*i)) else {
            return;
        };
        if segment.flags().contains(Flags::ACK) {
            seen.has = Some(match seen.has {
                Some(has) => has.max_seq(segment.ack()),
                None => segment.ack(),
            });
            let room = u32::from(segment.window()) << seen.window_scale;
            seen.room = seen.room.max(room);
        } else if segment.flags().contains(Flags::SYN) {
            let scale = SynOptions::parse(segment.option_bytes()).window_scale;
            seen.window_scale = scale.unwrap_or(0);
        }
    }
}

impl super::ClientView {
    /// Whether the client's TCP has all output, and the end.
    pub(super) fn has_all(&self) -> bool {
        let length = crate::length32(self.script.outstream.len());
        let end = self.server_isn.map(|isn| isn + 1 + length + 1);
        self.restarted && self.has.is_some() && self.has == end
    }

    /// A probe asks for the client's position, with bytes that the client has had.
    fn asked(&mut self, segment: &Segment<'_>) -> Result<(), Violation> {
        let key = self.key;
        let end = segment.seq() + segment.sequence_len();
        let had = self.has.or(self.server_isn.map(|isn| isn + 1));
        // A client that never had the SYN-ACK does not answer a probe.
        let nothing_new = !self.established || had.is_some_and(|had| !end.after(had));
        ensure(nothing_new, || {
            describe(key, "asks with something new", segment)
        })
    }

    /// A byte of a response that depends on the incarnation has reached the client: from now on only that incarnation
    /// may respond.
    fn hears(&mut self, at: usize, byte: u8) -> Result<(), Violation> {
        let any = self.script.any.iter().find(|any| any.contains(&at));
        let Some(any) = any.filter(|_| self.script.alike) else {
            return Ok(());
        };
        let place = any.start;
        let key = self.key;
        let is_same = *self.came.entry(place).or_insert(byte) == byte;
        self.told.entry(place).or_insert(byte);
        ensure(is_same, || format!("{key} hears two lives at {at}"))
    }

    fn knows_more_than(&self, segment: &Segment<'_>) -> bool {
        self.acknowledged
            .is_some_and(|before| segment.ack().before(before))
    }

    fn check_numbers(&mut self, segment: &Segment<'_>) -> Result<(), Violation> {
        let key = self.key;
        let before = self.acknowledged;
        ensure(
            before.is_none_or(|before| !segment.ack().before(before)),
            || describe(key, "takes an acknowledgement back", segment),
        )?;
        self.acknowledged = Some(segment.ack());
        let Some(stamps) = segment.timestamps() else {
            return Ok(());
        };
        let newer = self
            .tsval
            .is_none_or(|before| !SeqNumber(stamps.value).before(SeqNumber(before)));
        self.tsval = Some(stamps.value);
        ensure(newer, || describe(key, "is older than one before", segment))
    }

    fn check_bytes(&mut self, isn: SeqNumber, segment: &Segment<'_>) -> Result<(), Violation> {
        let key = self.key;
        self.heard = true;
        let at = index(segment.seq().0.wrapping_sub(isn.0).wrapping_sub(1));
        // The client ignores bytes that the client already has, from an incarnation that responds otherwise: a FIN
        // brings these.
        let had = self.has.filter(|_| self.script.alike);
        let had = had.and_then(|had| had.distance_from(segment.seq()));
        let had = had.map_or(0, index);
        let room = self.window_from(segment.seq());
        for (i, byte) in segment.payload().iter().enumerate().skip(had) {
            if i >= room && self.is_of_any_incarnation(at.wrapping_add(i)) {
                continue;
            }
            let right = self.may_be_sent(at.wrapping_add(i), *byte);
            ensure(right, || describe(key, "holds a wrong byte", segment))?;
        }
        let end = at.wrapping_add(segment.payload_len());
        let fin = segment.flags().contains(Flags::FIN);
        ensure(!fin || end == self.script.outstream.len(), || {
            describe(key, "is a FIN that comes too early", segment)
        })
    }
}

fn describe(key: FlowKey, what: &str, segment: &Segment<'_>) -> String {
    format!(
        "{key}: a segment {what}: seq {} ack {} flags {:02x} window {} payload {}",
        segment.seq(),
        segment.ack(),
        segment.flags().bits(),
        segment.window(),
        segment.payload_len(),
    )
}
