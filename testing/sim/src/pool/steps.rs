//! Steps of a run: packets arrive, timers end, faults happen.

use objects::revivals::Ended;

use super::{
    Pool, client,
    member::{Around, Sent, key_of, number_of},
    network::Receiver,
    scenario::{FOR_GOOD, Fault},
    segments::described,
    store::{Confirmed, Message},
    witness::{Broken, Known, KnownStore, is_collision, is_explained},
};
use crate::{MS, SECOND};

/// A hole of a client that was filled a short time ago may be in a segment that is still on its way.
const HOLE_MEMORY: u64 = 2 * SECOND;

impl Pool {
    /// When something happens next.
    pub(super) fn due(&self) -> u64 {
        let members = self.members.iter();
        let members = members.map(|it| it.due(&self.balancer, self.now)).min();
        let clients = 0..self.clients.len();
        let clients = clients.filter(|number| self.may_begin(*number));
        let clients = clients.map(|number| self.clients[number].due()).min();
        let faults = self.scenario.faults.first().map(|(at, _)| *at);
        [members, clients, faults]
            .into_iter()
            .flatten()
            .chain([self.ways.due(), self.balancer.due()])
            .min()
            .unwrap_or(u64::MAX)
    }

    pub(super) fn step(&mut self) -> Result<(), Broken> {
        while let Some((at, fault)) = self.scenario.faults.first().copied()
            && at <= self.now
        {
            self.scenario.faults.remove(0);
            self.fail(fault)?;
        }
        while let Some((order, (to, packet))) = self.ways.network.arrived(self.now) {
            self.deliver(to, packet, order)?;
        }
        while let Some(message) = self.ways.stores.arrived(&mut self.rng, self.now) {
            self.on_store_message(message);
        }
        while let Some((_, (to, claim))) = self.ways.claims.arrived(self.now) {
            if self.now >= self.members[to].control_side_cut_until && self.members[to].is_up {
                self.note(|| format!("claim for member {to}: {claim:?}"));
                self.members[to].user_space.receive(claim);
            }
        }
        self.balance();
        for number in 0..self.members.len() {
            if self.members[number].due(&self.balancer, self.now) <= self.now {
                let was_up = self.members[number].is_up;
                self.with_member(number, |member, service, around, sent| {
                    member.on_time(service, around, sent)
                })?;
                // The first hosts boot at the beginning.
                self.happened.moved |= !was_up && self.members[number].is_up && self.now > MS;
            }
        }
        for number in 0..self.clients.len() {
            if self.may_begin(number) && self.clients[number].due() <= self.now {
                let packets = self.clients[number].on_time(self.now);
                self.send(number, packets);
            }
        }
        Ok(())
    }

    fn balance(&mut self) {
        if self.balancer.due() > self.now {
            return;
        }
        let members = &self.members;
        let cuts = |id| {
            let member = members.iter().find(|member| member.stream() == Some(id));
            member.map_or(0, |member| member.control_side_cut_until)
        };
        let way = (self.now, &mut self.rng);
        let had_table = self.balancer.table().is_some();
        if self.balancer.on_time(cuts, way) {
            self.happened.moved |= had_table;
            let names = self.balancer.table().map(|table| {
                let names = table.members.iter().map(|it| it.name.to_string());
                (table.epoch, names.collect::<Vec<_>>())
            });
            self.note(|| format!("table {names:?}"));
        }
    }

    fn with_member(
        &mut self,
        number: usize,
        work: impl FnOnce(
            &mut super::Member,
            std::net::SocketAddr,
            &mut Around<'_>,
            &mut Sent,
        ) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let mut sent = Sent::default();
        let mut around = Around {
            scenario: &self.scenario,
            balancer: &mut self.balancer,
            rng: &mut self.rng,
            now: self.now,
        };
        let member = &mut self.members[number];
        work(member, self.service, &mut around, &mut sent)?;
        member.fill_rings(&mut sent);
        if member.is_up {
            sent.to_stores = member.user_space.messages(self.now);
        }
        self.dispatch(number, sent)
    }

    /// Results of a member's step take their ways.
    fn dispatch(&mut self, number: usize, sent: Sent) -> Result<(), Broken> {
        for key in sent.unprotected {
            if let Some(client) = self.client_of(key.client().port())
                && !self.clients[client].reader().is_unprotected
            {
                self.note(|| format!("member {number}: {key:?} is unprotected"));
                self.clients[client].reader_mut().is_unprotected = true;
            }
        }
        for (key, start, is_exposed) in sent.bare {
            if let Some(client) = self.client_of(key.client().port()) {
                self.clients[client]
                    .turns_mut()
                    .note_bare(start, is_exposed);
            }
        }
        for message in sent.to_stores {
            self.note(|| format!("member {number} to store {message:?}"));
            self.ways.stores.send(message, &mut self.rng, self.now);
        }
        for ended in sent.ended {
            self.on_ended(number, &ended)?;
        }
        let is_cut = self.now < self.members[number].client_side_cut_until;
        for packet in sent.to_clients.into_iter().filter(|_| !is_cut) {
            self.note(|| format!("member {number} sends {}", described(&packet)));
            if let Some(client) = self.client_of_packet(&packet) {
                self.check_record(client, &packet)?;
                let to = Receiver::Client(client);
                let quality = self.scenario.quality;
                let network = &mut self.ways.network;
                network.send(to, packet, quality, &mut self.rng, self.now);
            }
        }
        for (to, packet) in sent.forwarded {
            self.outcome.forwarded += 1;
            if !is_cut {
                let to = number_of(to);
                self.note(|| format!("member {number} forwards to {to}: {}", described(&packet)));
                let thing = (Receiver::Member(to), packet);
                self.ways.network.link(thing, &mut self.rng, self.now);
            }
        }
        let is_cut = self.now < self.members[number].control_side_cut_until;
        for (to, claim) in sent.claims.into_iter().filter(|_| !is_cut) {
            self.ways
                .claims
                .link((number_of(to), claim), &mut self.rng, self.now);
        }
        Ok(())
    }

    /// The newest client with this port.
    fn client_of(&self, port: u16) -> Option<usize> {
        let has_port = |it: &client::Downloader| it.key.client().port() == port;
        let all = 0..self.clients.len();
        let mut all = all.rev().filter(|number| self.may_begin(*number));
        all.find(|number| has_port(&self.clients[*number]))
    }

    /// Whether the client before, with the same port, is over.
    fn may_begin(&self, number: usize) -> bool {
        let before = self.scenario.clients[number].after;
        before.is_none_or(|before| self.clients[before].is_over())
    }

    fn check_record(&self, client: usize, packet: &[u8]) -> Result<(), Broken> {
        let ip = wire::IpPacket::parse(packet).map_err(Broken::unreadable)?;
        match wire::Segment::of(&ip) {
            Ok(segment) => self.clients[client].check_record(&segment),
            // ICMP.
            Err(_) => Ok(()),
        }
    }

    /// A message of a store arrives at its member.
    fn on_store_message(&mut self, message: Message) {
        self.note(|| format!("from store {message:?}"));
        if let Some(Confirmed { key, record, store }) = self.ways.stores.confirmed(&message)
            && let Some(client) = self.client_of(key.client().port())
            && let Some(turn) = record.turns.last()
            && self.clients[client].has_asked(turn.request_start)
        {
            let turns = self.clients[client].turns_mut();
            turns.note_stored(turn.request_start, store);
        }
        let member = message.member;
        if self.members[member].is_up {
            self.members[member]
                .user_space
                .on_store_message(message, self.now);
        }
    }

    fn client_of_packet(&self, packet: &[u8]) -> Option<usize> {
        match key_of(packet) {
            Ok(key) => self.client_of(key.client().port()),
            // ICMP quotes the client's segment behind headers.
            Err(_) => {
                let ip = wire::IpPacket::parse(packet).ok()?;
                self.client_of(key_of(ip.payload().get(8..)?).ok()?.client().port())
            }
        }
    }

    /// A revival has ended.
    fn on_ended(&mut self, number: usize, ended: &Ended) -> Result<(), Broken> {
        self.note(|| format!("member {number}: revival {ended:?}"));
        let Some(client) = self.client_of(ended.key.client().port()) else {
            return Ok(());
        };
        match &ended.refused {
            None => {
                self.outcome.revived += 1;
                self.compare_versions(number, client, ended)
            }
            // The last acknowledgement of a client that has closed.
            Some(_) if self.clients[client].is_over() => Ok(()),
            Some(reason) => {
                let known = self.known_of(client);
                if !is_explained(reason, known) {
                    let text =
                        format!("client {client} is refused without need: {reason} {known:?}");
                    return Err(Broken::new(text));
                }
                self.is_explained[client] = true;
                Ok(())
            }
        }
    }

    fn known_of(&self, number: usize) -> Known {
        let client = &self.clients[number];
        let reader = client.reader();
        let had_hole = reader
            .had_hole_at
            .is_some_and(|at| at + HOLE_MEMORY > self.now);
        Known {
            happened: self.happened,
            is_unprotected: reader.is_unprotected,
            had_part_of_head: had_hole || reader.has_part_of_head(),
            has_pipelined: client.has_pipelined(),
            has_aligning_server: self.scenario.aligns,
            had_no_server: self.happened.moved,
            is_malformed: reader.response().is_some_and(|it| it.part.is_malformed()),
            store: self.scenario.store.as_ref().map(|_| KnownStore {
                has_timestamps: client.has_timestamps(),
                is_stored: client.turns().is_stored(client.record_start()),
                is_there: {
                    let start = client.record_start();
                    self.ways.stores.has_record(&client.key, start, self.now)
                },
                is_exposed: client.is_exposed(),
                has_no_body: reader.response().is_none(),
            }),
        }
    }

    /// A connection goes on with another version of the object, or at another place: the echo must be unable to tell.
    fn compare_versions(
        &mut self,
        number: usize,
        client: usize,
        ended: &Ended,
    ) -> Result<(), Broken> {
        let reader = self.clients[client].reader();
        let Some(response) = reader.response().filter(|_| ended.offset.is_some()) else {
            return Ok(());
        };
        let part = response.part;
        let here = self.members[number].versions[part.object];
        let first = self.clients[client].asked_first();
        if here.0 == part.version && first == part.first {
            return Ok(());
        }
        let version = self.scenario.site.version(part.object, here);
        let key = objects::PoolKey(super::POOL_KEY);
        let check = types::VersionCheck::Etag;
        if is_collision(&key, &ended.key, reader.echo(), &version, first, check) {
            // The risk that `docs/objects.md` names: the client stops here.
            self.clients[client].stage = client::Stage::Closed;
            self.outcome.collisions += 1;
            return Ok(());
        }
        Err(Broken::new(format!(
            "{part:?} goes on with version {} from {first}",
            here.0
        )))
    }

    /// Packets of a client.
    fn send(&mut self, client: usize, packets: Vec<Vec<u8>>) {
        for packet in packets {
            self.note(|| format!("client {client} sends {}", described(&packet)));
            let (to, quality) = (Receiver::Balancer, self.scenario.quality);
            let network = &mut self.ways.network;
            network.send(to, packet, quality, &mut self.rng, self.now);
        }
    }

    fn deliver(&mut self, to: Receiver, packet: Vec<u8>, order: u64) -> Result<(), Broken> {
        match to {
            Receiver::Client(number) => {
                self.note(|| format!("client {number} gets {}", described(&packet)));
                let client = &mut self.clients[number];
                let before = client.reader().whole_count();
                let site = &self.scenario.site;
                let packets = client.on_packet(&packet, order, site, self.now)?;
                let reader = client.reader_mut();
                if reader.has_hole() {
                    reader.had_hole_at = Some(self.now);
                }
                self.outcome.responses += reader.whole_count() - before;
                self.send(number, packets);
            }
            Receiver::Balancer => {
                let owner = self.balancer.owner(key_of(&packet)?);
                let mut members = self.members.iter();
                let owner = owner.and_then(|name| members.position(|it| it.name.as_str() == name));
                if let Some(owner) = owner {
                    let thing = (Receiver::Member(owner), packet);
                    self.ways.network.link(thing, &mut self.rng, self.now);
                }
            }
            Receiver::Member(number) => {
                let member = &self.members[number];
                if !member.is_up || self.now < member.client_side_cut_until {
                    return Ok(());
                }
                self.note(|| format!("member {number} gets {}", described(&packet)));
                self.with_member(number, |member, _, around, sent| {
                    member.arrive(packet, around, sent)
                })?;
            }
        }
        Ok(())
    }

    fn fail(&mut self, fault: Fault) -> Result<(), Broken> {
        let now = self.now;
        self.note(|| format!("{fault:?}"));
        self.happened.moved = true;
        match fault {
            Fault::PowerLost { member, lasts } => {
                self.happened.lost_power = true;
                self.ways.stores.lose_member(member);
                self.members[member].lose_power(now + lasts);
            }
            Fault::ServerCrash { member } => {
                let member = (self.members[member].is_up).then_some(member);
                if let Some(member) = member {
                    self.with_member(member, |member, _, around, sent| member.crash(around, sent))?;
                }
            }
            Fault::Stopped {
                member,
                lasts,
                with_lease,
            } => self.members[member].stop(now + lasts, with_lease),
            Fault::ClientSideCut { member, lasts } => {
                self.members[member].client_side_cut_until = now + lasts;
            }
            Fault::ControlSideCut { member, lasts } => {
                self.members[member].control_side_cut_until = now + lasts;
            }
            Fault::BalancerKilled { lasts } => self.balancer.kill(now + lasts, now),
            Fault::BalancerPowerLost { lasts } => self.balancer.lose_power(now + lasts),
            Fault::Drained { member } => {
                let name = self.members[member].name.clone();
                self.balancer.drain(&name, now);
            }
            Fault::Changed { member, object } => {
                self.happened.changed = true;
                let version = &mut self.members[member].versions[object];
                *version = (version.0 + 1, now);
            }
            Fault::StoreDied {
                store,
                lasts,
                forgets,
                is_silent,
            } => {
                self.happened.store_failed = true;
                let death = (now + lasts, forgets, is_silent);
                self.ways.stores.kill(store, death, &mut self.rng, now);
            }
            Fault::StoreCut {
                member,
                store,
                lasts,
            } => {
                self.happened.store_failed = true;
                self.ways.stores.cut(member, store, now + lasts);
            }
            Fault::StoreSlow { store, lasts, by } => {
                self.happened.store_failed = true;
                self.ways.stores.slow_down(store, now + lasts, by);
            }
            Fault::Evicted { store, all } => {
                self.happened.store_failed = true;
                self.ways.stores.evict(store, all);
            }
        }
        Ok(())
    }
}

impl Fault {
    /// How long clients have to wait for the end of the fault.
    pub(super) const fn lasts(&self) -> u64 {
        match self {
            Self::PowerLost {
                lasts: FOR_GOOD, ..
            } => 0,
            Self::PowerLost { lasts, .. }
            | Self::Stopped { lasts, .. }
            | Self::ClientSideCut { lasts, .. }
            | Self::ControlSideCut { lasts, .. }
            | Self::BalancerKilled { lasts }
            | Self::BalancerPowerLost { lasts }
            | Self::StoreDied { lasts, .. }
            | Self::StoreCut { lasts, .. }
            | Self::StoreSlow { lasts, .. } => *lasts,
            Self::ServerCrash { .. }
            | Self::Drained { .. }
            | Self::Changed { .. }
            | Self::Evicted { .. } => 0,
        }
    }
}
