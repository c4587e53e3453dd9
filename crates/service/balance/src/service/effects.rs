//! The effects of the monitor's decisions, and the state for people.

use pool::{Event as PoolEvent, Output};
use protocol::pool::{Table, TableKind};

use super::{Balancer, Tell, now};
use crate::{
    error::BalanceError,
    event::{Code, Event},
    status::{CONFIRM_DEAD, DRAIN, MemberStatus, NO_FORWARD, PacketCounts, Status},
};

impl Balancer {
    /// Does what the monitor has decided, in that order.
    pub(super) fn act(&mut self, tell: Tell<'_>) -> Result<(), BalanceError> {
        while let Some(output) = self.monitor.output() {
            match output {
                Output::Table(table) => self.write_table(&table, tell)?,
                Output::Send { stream, message } => {
                    let known = self.streams.get_mut(&stream);
                    if let Some(Err(error)) = known.map(|stream| stream.say(&message)) {
                        self.dismiss(stream, &error, tell);
                    }
                }
                Output::Close { stream } => {
                    if let Some(stream) = self.streams.get_mut(&stream) {
                        stream.is_closing = true;
                    }
                }
                Output::Event(PoolEvent::Refused { name, reason }) => {
                    let event = Event::Refused {
                        from: None,
                        member: name.map(|name| name.to_string()),
                        reason: reason.to_string(),
                    };
                    self.refuse(event, tell);
                }
                Output::Event(event) => {
                    if let Some(event) = of_pool(event) {
                        self.emit(&event, tell);
                    }
                }
            }
        }
        Ok(())
    }

    fn write_table(&mut self, table: &Table, tell: Tell<'_>) -> Result<(), BalanceError> {
        let unreachable = self.forwarding.write(table)?;
        for name in unreachable {
            let missing = match self.forwarding.encapsulates() {
                true => "no route leads to",
                false => "no link of this host has",
            };
            let reason = format!("{missing} {name}: packets to {name} are lost");
            self.warn(Code::MemberNotOnLink, reason, tell);
        }
        let members = table.members.iter().map(|member| member.name.to_string());
        let event = Event::Table {
            epoch: table.epoch,
            members: members.collect(),
            balancers: table.granters.len(),
        };
        self.emit(&event, tell);
        Ok(())
    }

    /// Attaches the program to new interfaces.
    pub(super) fn attach(&mut self, tell: Tell<'_>) -> Result<(), BalanceError> {
        let xdp_devices = self.config.xdp_devices()?;
        for (interface, error) in self.forwarding.attach(&xdp_devices)? {
            let reason = format!("packets on {interface} are not balanced: {error}");
            self.warn(Code::InterfaceNotAttached, reason, tell);
        }
        Ok(())
    }

    /// Holds and announces the addresses of the service.
    pub(super) fn hold_addresses(&mut self, tell: Tell<'_>) {
        let Some(addresses) = &mut self.addresses else {
            return;
        };
        let now = now();
        if now < addresses.due() {
            return;
        }
        match addresses.poll(now) {
            Ok(gone) => {
                for ip in gone {
                    let reason =
                        format!("the address {ip} had been taken from this host; it is up again");
                    self.warn(Code::AddressTaken, reason, tell);
                }
            }
            Err(error) => self.warn(Code::AddressNotHeld, error.to_string(), tell),
        }
    }

    /// Carries the operator's requests out, and answers questions.
    pub(super) fn answer_operator(&mut self) {
        let listen = self.listens_on();
        let monitor = &mut self.monitor;
        self.operator.carry_out(|request, member| {
            let member = match member.parse() {
                Ok(member) => member,
                Err(error) => return Some(format!("{error}")),
            };
            let done = match request {
                DRAIN => monitor.drain(now(), &member).map_err(|it| it.to_string()),
                CONFIRM_DEAD => {
                    let confirmed = monitor.confirm_dead(now(), &member);
                    confirmed.map_err(|it| it.to_string())
                }
                other => Err(format!("this balancer knows no request {other}")),
            };
            done.err()
        });
        let (monitor, forwarding, config) = (&self.monitor, &self.forwarding, &self.config);
        self.operator
            .answer(|_| status(config, listen, monitor, forwarding));
    }

    /// Leaves a snapshot for the metrics.
    pub(super) fn show(&self) {
        if let Some(shown) = &self.shown {
            let (monitor, forwarding) = (&self.monitor, &self.forwarding);
            let status = status(&self.config, self.listens_on(), monitor, forwarding);
            if let Some(status) = status {
                shown.show(status);
            }
        }
    }
}

fn of_pool(event: PoolEvent) -> Option<Event> {
    Some(match event {
        PoolEvent::Joined { name, address } => Event::Joined {
            member: name.to_string(),
            address: address.ip(),
        },
        PoolEvent::Left { name } => Event::Left {
            member: name.to_string(),
        },
        PoolEvent::Draining { name } => Event::Draining {
            member: name.to_string(),
        },
        PoolEvent::Drained { name } => Event::Drained {
            member: name.to_string(),
        },
        PoolEvent::DeclaredDead { name, silent } => Event::DeclaredDead {
            member: name.to_string(),
            silent_ms: u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
        },
        PoolEvent::StreamLost { name } => Event::StreamLost {
            member: name.to_string(),
        },
        PoolEvent::Refused { .. } => return None,
    })
}

/// `None`: the kernel does not show the counters.
fn status(
    config: &crate::BalanceConfig,
    listen: Vec<std::net::SocketAddr>,
    monitor: &pool::Monitor<crate::register::PoolRegister>,
    forwarding: &crate::forwarding::Forwarding,
) -> Option<Status> {
    let counters = forwarding.counters().ok()?;
    let packets = forwarding.member_packets().ok()?;
    let (now, table, terms) = (now(), monitor.table(), config.terms().ok()?);
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let members = monitor.members().map(|member| {
        let name = member.entry.name.to_string();
        let counted = packets.iter().find(|(of, _)| *of == name);
        let is_in = |entry: &protocol::pool::TableMember| entry.name == member.entry.name;
        MemberStatus {
            address: member.entry.address.ip(),
            in_table: table.members.iter().any(is_in),
            connected: member.is_connected,
            draining: member.entry.draining,
            unknown: member.is_unknown,
            silent_ms: millis(now.saturating_sub(member.heard)),
            packets: counted.map_or(0, |(_, packets)| *packets),
            name,
        }
    });
    let hash = match table.kind {
        TableKind::Maglev => "maglev",
        TableKind::Modulo => "mod",
    };
    Some(Status {
        pool: config.name.clone(),
        service: config.addresses.clone(),
        listen,
        hash: hash.to_owned(),
        epoch: table.epoch,
        stores: config.store.as_ref().map_or(0, |store| store.urls.len()),
        register: monitor.register_ref().name(),
        register_failure: monitor.register_ref().failure(),
        balancers: table.granters.len(),
        grants: monitor.is_granter(),
        lease_ms: [millis(terms.least), millis(terms.term)],
        members: members.collect(),
        counts: PacketCounts {
            packets: counters.forwarded,
            icmp_packets: counters.icmp,
            dropped_fragments: counters.fragments,
            dropped_without_member: counters.no_member,
            dropped_not_wrapped: counters.not_wrapped,
            xdp_packets: counters.xdp_forwarded,
        },
        forward: match forwarding.is_here() {
            true => config.delivery.forward.word().to_owned(),
            false => NO_FORWARD.to_owned(),
        },
        xdp_devices: forwarding.xdp_devices(),
    })
}
