//! Keyed initial sequence numbers (TRODS 5.3; RFC 6528).
//!
//! Each member can compute the ISN of a connection from the addresses and the slot. The ISN of the same addresses
//! differs between slots: a late packet of an older connection is not taken for a packet of the new connection. With
//! the same ISN, a late segment of the connection before would begin at the very number that the client waits for: a
//! client that reuses a port within a slot gets the next slot.

use core::time::Duration;

use wire::{FlowKey, SeqNumber};

use crate::key::{PoolKey, Use};

/// Length of a slot.
pub const SLOT_DURATION: Duration = Duration::from_secs(16);
/// Number of slots. After 256 s, longer than two maximum segment lifetimes, a slot comes again.
pub const SLOT_COUNT: u8 = 16;
/// How far the slot of a connection may lie ahead of the clock.
pub const SLOTS_AHEAD_MAX: u8 = 3;
/// Distance of the ISNs of two slots: the highest four bits of a sequence number.
const SLOT_SHIFT: u32 = 28;

/// Part of the wall clock in which a connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot(u8);

impl Slot {
    /// The slot at a time since the Unix epoch.
    #[must_use]
    pub const fn at(since_epoch: Duration) -> Self {
        let number = since_epoch.as_secs() / SLOT_DURATION.as_secs();
        Self(number.to_le_bytes()[0] % SLOT_COUNT)
    }

    /// The slot with this number modulo [`SLOT_COUNT`].
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(number % SLOT_COUNT)
    }

    /// The slot of a connection that begins in this slot, of the same addresses as a connection of the slot `last`.
    #[must_use]
    pub const fn behind(self, last: Self) -> Self {
        if last.distance_from(self) < SLOTS_AHEAD_MAX {
            Self::new(last.0 + 1)
        } else {
            self
        }
    }

    /// When a connection of this slot began, at the earliest, at this time since the Unix epoch.
    #[must_use]
    pub fn earliest_beginning(self, since_epoch: Duration) -> Duration {
        let slots = since_epoch.as_secs() / SLOT_DURATION.as_secs();
        let latest = Self::new(Self::at(since_epoch).0 + SLOTS_AHEAD_MAX);
        let age = latest.distance_from(self);
        SLOT_DURATION * u32::try_from(slots.saturating_sub(age.into())).unwrap_or(u32::MAX)
    }

    /// The same, of a connection whose slot was not ahead of the clock.
    #[must_use]
    pub fn beginning(self, since_epoch: Duration) -> Duration {
        let earliest = self.earliest_beginning(since_epoch);
        let latest = SLOT_DURATION * u32::from(SLOTS_AHEAD_MAX);
        let now = since_epoch.as_secs() / SLOT_DURATION.as_secs();
        let now = SLOT_DURATION * u32::try_from(now).unwrap_or(u32::MAX);
        (earliest + latest).min(now)
    }

    const fn distance_from(self, other: Self) -> u8 {
        (self.0 + SLOT_COUNT - other.0) % SLOT_COUNT
    }

    /// 0 to 15.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The server's initial sequence number of a connection that began in `slot`.
#[must_use]
pub fn initial(key: &PoolKey, flow: &FlowKey, slot: Slot) -> SeqNumber {
    let hash = key.hash(Use::Isn, flow, [0; 4]);
    SeqNumber(hash.wrapping_add(u32::from(slot.0) << SLOT_SHIFT))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flow(port: u16) -> FlowKey {
        let client = std::net::SocketAddr::from(([10, 0, 0, 1], port));
        FlowKey::new(client, ([10, 0, 0, 10], 80).into())
    }

    proptest! {
        /// Two connections with the same addresses within four minutes, in different slots.
        #[test]
        fn isn_of_same_addresses_differs_between_slots(
            secret in any::<[u8; 16]>(),
            port in any::<u16>(),
            began in 0_u64..1 << 40,
            later in 16_u64..240,
        ) {
            let isn = |seconds| initial(&PoolKey(secret), &flow(port), Slot::at(Duration::from_secs(seconds)));
            prop_assert_ne!(isn(began), isn(began + later));
        }

        #[test]
        fn isn_depends_on_key_and_addresses(secret in any::<[u8; 16]>(), port in 1..u16::MAX) {
            let isn = |secret, port| initial(&PoolKey(secret), &flow(port), Slot(0));
            let mut other = secret;
            other[0] ^= 1;
            prop_assert_ne!(isn(secret, port), isn(other, port));
            prop_assert_ne!(isn(secret, port), isn(secret, port - 1));
        }
    }

    #[test]
    fn slots_have_a_period_of_256_seconds() {
        let slot = |seconds| Slot::at(Duration::from_secs(seconds)).number();
        assert_eq!(
            [slot(0), slot(15), slot(16), slot(255), slot(256)],
            [0, 0, 1, 15, 0]
        );
        assert_eq!(Slot::new(16), Slot::new(0));
    }

    /// Connections of the same addresses, as fast as a client can begin them.
    #[test]
    fn slot_of_a_reused_port_differs_and_began_in_time() {
        for seconds in [0, 15, 16, 255, 1_000_000] {
            let began = Duration::from_secs(1 << 20) + Duration::from_secs(seconds);
            let now = Slot::at(began);
            let mut last = now;
            for _ in 0..20 {
                let slot = now.behind(last);
                assert_ne!(slot, last);
                assert!(slot.distance_from(now) <= SLOTS_AHEAD_MAX);
                for later in [Duration::ZERO, crate::revive::WITHHOLD_MAX] {
                    let earliest = slot.earliest_beginning(began + later);
                    let slack = SLOT_DURATION * (u32::from(SLOTS_AHEAD_MAX) + 1);
                    assert!(earliest <= began && earliest + slack > began);
                    let nominal = slot.beginning(began + later);
                    assert!(nominal >= earliest && nominal <= began + later);
                    assert!(slot != now || (nominal <= began && nominal + SLOT_DURATION > began));
                }
                last = slot;
            }
            assert_eq!(
                Slot::at(began + SLOT_DURATION).behind(now),
                Slot::at(began + SLOT_DURATION)
            );
        }
    }
}
