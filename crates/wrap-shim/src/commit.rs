//! Output leaves when all that it may depend on is with the logger (*output commit*; `ft-tcp-infocom-2001`, IV.D).
//!
//! The process tells the logger by itself, by UDP, and waits for its answer: no other process of this host has to run
//! meanwhile. It does so when it is about to say something and there is something that the logger does not have, so once
//! for each turn of an event loop, however much is said in it. What is lost is sent again. It says all that any process
//! of the service has recorded: what it is about to say may depend on that.

use core::{
    mem,
    net::{Ipv4Addr, Ipv6Addr},
    sync::atomic::Ordering,
};

use libc::{
    AF_INET, AF_INET6, EAGAIN, EINTR, MSG_TRUNC, SO_RCVTIMEO, SOL_SOCKET, sockaddr_in,
    sockaddr_in6, timeval,
};
use protocol::link::{
    DETERMINANTS_OVERHEAD, Determinants, KeySet, KeySlot, LinkKey, STABLE_LEN, Stable,
    StreamPosition,
};
use wrap_abi::layout::{Destination, FILE_FD, Hold, Mode, Process, SHIPPING_FD, stream_offset};

use crate::{
    say::say,
    sys::{Outcome, sys},
    wrap::Wrap,
};

/// How long the answer is waited for before it is all said again, microseconds: at first, and at last.
const FIRST_PATIENCE: i64 = 20_000;
const LONGEST_PATIENCE: i64 = 200_000;
/// Most bytes that are under way of a stream.
const WINDOW: u64 = 128 << 10;
/// Datagrams are not longer, bytes.
const DATAGRAM_MAX: usize = 1472;

/// The way to the logger.
#[derive(Default)]
pub(crate) struct Shipping {
    /// Which destination the socket is connected to; 0: none.
    turn: u32,
    there: Destination,
    /// How long the socket waits, microseconds.
    patience: i64,
}

/// What came of waiting.
enum Heard {
    /// Something is stable that was not.
    News,
    /// The logger takes nothing of this record any more.
    Over,
    /// It was another's, or is known.
    Nothing,
    /// Nothing has come for as long as was waited.
    Silence,
}

impl Wrap {
    /// Something is about to be said: wait until everything that was recorded is safe. There is nothing to wait for in a
    /// replay.
    #[inline]
    pub(crate) fn commit(&mut self) {
        if self.is_replay {
            return;
        }
        self.stream.speaks();
        self.commit_replayed();
    }

    /// The same for what the supervisor says of what was said in a replay.
    #[inline]
    pub(crate) fn commit_replayed(&mut self) {
        if self.page.hold.load(Ordering::Relaxed) != Hold::Never as u32 {
            self.await_stable();
        }
    }

    /// The same before something is done that is no word to a client.
    #[inline]
    pub(crate) fn commit_effect(&mut self) {
        if self.page.hold.load(Ordering::Relaxed) == Hold::EffectsToo as u32 && !self.is_replay {
            self.await_stable();
        }
    }

    fn await_stable(&mut self) {
        let mut patience = FIRST_PATIENCE;
        while !self.is_free_to_speak() {
            if !self.find_the_way() {
                pause(patience);
                continue;
            }
            let under_way = self.ship();
            patience = match self.hear_all(under_way, patience) {
                true => FIRST_PATIENCE,
                false => (patience * 2).min(LONGEST_PATIENCE),
            };
        }
    }

    /// Is there nothing that has to be waited for?
    fn is_free_to_speak(&self) -> bool {
        let held = self.page.hold.load(Ordering::Acquire) != Hold::Never as u32;
        let recorded = self.page.mode.load(Ordering::Acquire) == Mode::Record as u32;
        !(held && recorded) || self.processes().all(is_stable)
    }

    fn processes(&self) -> impl Iterator<Item = &'static Process> + use<> {
        let count = self.page.next_process.load(Ordering::Acquire) as usize;
        self.page.processes.0.iter().take(count)
    }

    /// Have the socket lead to where determinants go now. `false`: there is no such place, or no way.
    fn find_the_way(&mut self) -> bool {
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
            ..mem::take(&mut self.shipping)
        };
        true
    }

    /// Send what the logger does not have, as far as it may be under way. Tells how many bytes.
    fn ship(&mut self) -> u64 {
        let mut sent = 0;
        for (number, process) in (0..).zip(self.processes()) {
            let head = process.head.load(Ordering::Acquire);
            let from = process.stable.load(Ordering::Acquire).min(head);
            let to = head.min(from + WINDOW);
            self.ship_stream(number, from, to);
            sent += to - from;
        }
        sent
    }

    fn ship_stream(&self, process: u32, from: u64, to: u64) {
        let there = &self.shipping.there;
        let most = usize::from(there.datagram).clamp(DETERMINANTS_OVERHEAD + 1, DATAGRAM_MAX);
        let mut datagram = [0; DATAGRAM_MAX];
        let mut at = from;
        while at < to {
            let length = (most - DETERMINANTS_OVERHEAD).min((to - at) as usize);
            let datagram = &mut datagram[..DETERMINANTS_OVERHEAD + length];
            let room = Determinants::room(datagram);
            let offset = stream_offset(process) + at;
            // SAFETY: into our own buffer, as much as fits.
            let read = unsafe { sys!(SYS_pread64, FILE_FD, room.as_mut_ptr(), length, offset) };
            if read != length as Outcome {
                return;
            }
            Determinants::seal(&self.position(process, at, false), &key(there.up), datagram);
            send(datagram);
            at += length as u64;
        }
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

    /// Hear of `under_way` bytes. `false`: not of all of them in time.
    fn hear_all(&mut self, under_way: u64, patience: i64) -> bool {
        let before = self.stable_bytes();
        loop {
            match self.hear(patience) {
                Heard::Over => {
                    say(&[b"the logger has no room for the record: what follows is not recorded"]);
                    self.page.mode.store(Mode::Off as u32, Ordering::Release);
                    return true;
                }
                Heard::Silence => return self.is_free_to_speak(),
                Heard::Nothing => {}
                Heard::News => {
                    if self.stable_bytes().wrapping_sub(before) >= under_way {
                        return true;
                    }
                }
            }
        }
    }

    fn stable_bytes(&self) -> u64 {
        let stable = self
            .processes()
            .map(|process| process.stable.load(Ordering::Acquire));
        stable.fold(0, u64::wrapping_add)
    }

    fn hear(&mut self, patience: i64) -> Heard {
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
        let mut datagram = [0u8; STABLE_LEN];
        // SAFETY: a buffer on our stack.
        let length = unsafe {
            let (at, size) = (datagram.as_mut_ptr(), datagram.len());
            sys!(SYS_recvfrom, SHIPPING_FD, at, size, MSG_TRUNC, 0, 0)
        };
        if length < 0 {
            if ![EAGAIN, EINTR]
                .map(|code| -Outcome::from(code))
                .contains(&length)
            {
                pause(patience); // a host where no logger is says so at once
            }
            return Heard::Silence;
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
        }
        Heard::News
    }

    /// The record ends here. Before anything is said that is not in it, the logger is not to take it for whole.
    #[cold]
    pub(crate) fn end_record(&mut self) {
        let mut patience = FIRST_PATIENCE;
        while self.page.hold.load(Ordering::Acquire) != Hold::Never as u32
            && self.page.mode.load(Ordering::Acquire) == Mode::Record as u32
        {
            if !self.find_the_way() {
                pause(patience);
                continue;
            }
            let mut datagram = [0; DETERMINANTS_OVERHEAD];
            let at = self.position(self.process, 0, true);
            Determinants::seal(&at, &key(self.shipping.there.up), &mut datagram);
            send(&datagram);
            if matches!(self.hear(patience), Heard::Over) {
                break;
            }
            patience = (patience * 2).min(LONGEST_PATIENCE);
        }
        self.page.mode.store(Mode::Off as u32, Ordering::Release);
    }
}

fn is_stable(process: &Process) -> bool {
    process.stable.load(Ordering::Acquire) >= process.head.load(Ordering::Acquire)
}

fn key(bytes: [u8; 16]) -> LinkKey {
    LinkKey(bytes)
}

fn pause(microseconds: i64) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: microseconds * 1000,
    };
    // SAFETY: a structure on our stack.
    unsafe { sys!(SYS_nanosleep, &raw const time, 0) };
}

/// One that does not go is one that is lost.
fn send(datagram: &[u8]) {
    let (at, size) = (datagram.as_ptr(), datagram.len());
    // SAFETY: what is there lives.
    unsafe { sys!(SYS_sendto, SHIPPING_FD, at, size, 0, 0, 0) };
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
