//! The way to the logger: what was recorded goes there in UDP, and how far it is there comes back
//! (`protocol::link::Determinants`, `Stable`).
//!
//! The process does it by itself: no other process of this host has to run meanwhile. What is lost is sent again.

use core::{
    mem,
    net::{Ipv4Addr, Ipv6Addr},
    sync::atomic::Ordering,
};

use libc::{
    AF_INET, AF_INET6, EAGAIN, EINTR, MSG_DONTWAIT, MSG_TRUNC, SO_RCVTIMEO, SOL_SOCKET, c_int,
    sockaddr_in, sockaddr_in6, timeval,
};
use north_abi::layout::{Destination, Page, Process, SHIPPING_FD};
use protocol::link::{
    DETERMINANTS_OVERHEAD, Determinants, KeySet, KeySlot, LinkKey, STABLE_LEN, Stable,
    StreamPosition,
};

use crate::{
    datagrams::{Datagrams, send},
    sys::{Outcome, sys},
    wrap::Wrap,
};

/// Most bytes that are under way of a stream.
pub(crate) const WINDOW: u64 = 128 << 10;

/// The way to the logger.
#[derive(Default)]
pub(crate) struct Shipping {
    /// Which destination the socket is connected to; 0: none.
    turn: u32,
    there: Destination,
    /// How long the socket waits, microseconds.
    patience: i64,
    /// How far this process's stream was sent there.
    sent: u64,
}

/// What came of listening.
pub(crate) enum Heard {
    /// Something is stable that was not.
    News,
    /// The logger takes nothing of this record any more.
    Over,
    /// It was another's, or is known.
    Nothing,
    /// Nothing has come for as long as was waited.
    Silence,
    /// Its host says that nobody is there.
    Nobody,
}

impl Wrap {
    /// Have the socket lead to where determinants go now. `false`: there is no such place, or no way.
    pub(crate) fn find_the_way(&mut self) -> bool {
        let turn = self.page.shipping.turn();
        if turn == self.shipping.turn {
            return turn != 0;
        }
        let Some((turn, there)) = self.page.shipping.get() else {
            return false;
        };
        if !connect(&there) {
            return false;
        }
        self.shipping = Shipping {
            turn,
            there,
            sent: 0,
            ..self.shipping
        };
        self.datagrams.go_another_way();
        true
    }

    /// Send what the logger does not have, as far as it may be under way. Tells how many bytes.
    pub(crate) fn ship(&mut self) -> u64 {
        let mut sent = 0;
        for (number, process) in self.processes() {
            let head = process.head.load(Ordering::Acquire);
            let from = first_to_ship(process).min(head);
            let to = head.min(from + WINDOW);
            self.ship_stream(number, from, to);
            if number == self.process {
                self.shipping.sent = to;
            }
            sent += to - from;
        }
        sent
    }

    /// Send what this process has recorded and was not sent yet. `false`: there was nothing, or no room on the way.
    pub(crate) fn ship_news(&mut self) -> bool {
        let own = self.page.processes.0.get(self.process as usize);
        let (head, first) = (self.stream.position(), own.map_or(0, first_to_ship));
        let from = self.shipping.sent.clamp(first, head.max(first));
        let to = head.min(first + WINDOW);
        if from >= to {
            return false;
        }
        self.ship_stream(self.process, from, to);
        self.shipping.sent = to;
        true
    }

    /// How far this process's stream was sent there.
    pub(crate) fn shipped(&self) -> u64 {
        self.shipping.sent
    }

    /// How far it is there.
    pub(crate) fn stable(&self) -> u64 {
        let own = self.page.processes.0.get(self.process as usize);
        own.map_or(0, |own| own.stable.load(Ordering::Acquire))
    }

    fn ship_stream(&mut self, process: u32, from: u64, to: u64) {
        let (page, there) = (self.page, &self.shipping.there);
        let (longest, key) = (usize::from(there.datagram), key(there.up));
        let mut at = from;
        while at < to {
            let length = (to - at).min(Datagrams::capacity(longest));
            let place = self.position(process, at, false);
            let read = self.datagrams.read(&place, length, longest);
            // What is before the base is not there any more, and is read as zeros.
            let Some(read) = read.filter(|_| at >= base(page, process)) else {
                return;
            };
            read.send(place, &key);
            at += length;
        }
    }

    /// This process's record is over.
    pub(crate) fn ship_end(&self) {
        let mut datagram = [0; DETERMINANTS_OVERHEAD];
        let at = self.position(self.process, 0, true);
        Determinants::seal(&at, &key(self.shipping.there.up), &mut datagram);
        send(&datagram);
    }

    fn position(&self, process: u32, offset: u64, is_over: bool) -> StreamPosition {
        let there = &self.shipping.there;
        StreamPosition {
            slot: KeySlot::from_number(there.slot).unwrap_or(KeySlot::Zero),
            instance: there.instance,
            record: self.page.record.load(Ordering::Relaxed),
            process,
            offset,
            is_over,
        }
    }

    /// What it says within so many microseconds.
    pub(crate) fn hear(&mut self, patience: i64) -> Heard {
        if self.shipping.patience != patience {
            let wait = timeval {
                tv_sec: 0,
                tv_usec: patience,
            };
            let (at, size) = (&raw const wait, size_of::<timeval>());
            // SAFETY: a structure on our stack.
            unsafe {
                sys!(
                    SYS_setsockopt,
                    SHIPPING_FD,
                    SOL_SOCKET,
                    SO_RCVTIMEO,
                    at,
                    size
                );
            }
            self.shipping.patience = patience;
        }
        self.listen(0)
    }

    /// What it has said by now.
    pub(crate) fn hear_now(&mut self) -> Heard {
        self.listen(MSG_DONTWAIT)
    }

    fn listen(&mut self, flags: c_int) -> Heard {
        let mut datagram = [0u8; STABLE_LEN];
        // SAFETY: a buffer on our stack.
        let length = unsafe {
            let (at, size) = (datagram.as_mut_ptr(), datagram.len());
            sys!(SYS_recvfrom, SHIPPING_FD, at, size, MSG_TRUNC | flags, 0, 0)
        };
        if [EAGAIN, EINTR]
            .map(|code| -Outcome::from(code))
            .contains(&length)
        {
            return Heard::Silence;
        }
        if length < 0 {
            return Heard::Nobody;
        }
        if length != STABLE_LEN as Outcome {
            return Heard::Nothing;
        }
        let slot = KeySlot::from_number(self.shipping.there.slot).unwrap_or(KeySlot::Zero);
        let mut keys = KeySet::EMPTY;
        keys.put(slot, key(self.shipping.there.down));
        let Ok(Stable(at)) = Stable::decode(&datagram, &keys) else {
            return Heard::Nothing;
        };
        if at.record != self.page.record.load(Ordering::Relaxed) {
            return Heard::Nothing;
        }
        if at.is_over {
            return Heard::Over;
        }
        self.is_now_stable(at.process, at.offset)
    }

    fn is_now_stable(&self, process: u32, offset: u64) -> Heard {
        let Some(process) = self.page.processes.0.get(process as usize) else {
            return Heard::Nothing;
        };
        if offset > process.head.load(Ordering::Acquire)
            || process.stable.fetch_max(offset, Ordering::AcqRel) >= offset
        {
            return Heard::Nothing;
        }
        // If the logger is another one by now, it does not have what this one had.
        if self.page.shipping.turn() != self.shipping.turn {
            process.stable.store(0, Ordering::Release);
            self.page.settled.take_back();
        }
        Heard::News
    }
}

fn base(page: &Page, process: u32) -> u64 {
    let process = page.processes.0.get(process as usize);
    process.map_or(0, |process| process.base.load(Ordering::Acquire))
}

/// What the logger does not have. What an image has the place of the supervisor tells it, with the image.
fn first_to_ship(process: &Process) -> u64 {
    let stable = process.stable.load(Ordering::Acquire);
    stable.max(process.base.load(Ordering::Acquire))
}

fn key(bytes: [u8; 16]) -> LinkKey {
    LinkKey(bytes)
}

/// The socket is of either family: of IPv4 only where the host has no other.
fn connect(there: &Destination) -> bool {
    let ip = Ipv6Addr::from(there.ip);
    connect_to(&address_v6(ip, there))
        || ip
            .to_ipv4_mapped()
            .is_some_and(|ip| connect_to(&address_v4(ip, there)))
}

fn address_v4(ip: Ipv4Addr, there: &Destination) -> sockaddr_in {
    // SAFETY: all zeros is an address.
    let mut address: sockaddr_in = unsafe { mem::zeroed() };
    address.sin_family = AF_INET as u16;
    address.sin_port = there.port.to_be();
    address.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
    address
}

fn address_v6(ip: Ipv6Addr, there: &Destination) -> sockaddr_in6 {
    // SAFETY: all zeros is an address.
    let mut address: sockaddr_in6 = unsafe { mem::zeroed() };
    address.sin6_family = AF_INET6 as u16;
    address.sin6_port = there.port.to_be();
    address.sin6_addr.s6_addr = ip.octets();
    address.sin6_scope_id = there.scope;
    address
}

fn connect_to<T>(address: &T) -> bool {
    // SAFETY: an address that lives.
    unsafe {
        sys!(
            SYS_connect,
            SHIPPING_FD,
            &raw const *address,
            size_of::<T>()
        ) == 0
    }
}
