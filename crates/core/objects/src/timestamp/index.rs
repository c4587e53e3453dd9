//! The index of a timestamp: order for PAWS, and round trips for the server's TCP.
//!
//! The client's TCP refuses a segment with an older value than the newest value (PAWS, RFC 7323, 5). The newest value
//! stands still behind a lost segment. So values may be ahead of the newest echo by less than half of the space. The
//! paper's index counts packets, 128 of 128, and breaks this rule. This index counts time and retransmissions, and is
//! never more than [`MAX_LEAD`] of 64 ahead.
//!
//! The server's TCP has timestamps of its own. The table keeps, for each index, the server's value of the first segment
//! with that index. An echo is translated back before the server's TCP reads the echo.

/// Values of an index: 6 bits.
pub const INDEX_COUNT: u8 = 64;
/// Most steps that the newest index is ahead of the newest echo.
pub const MAX_LEAD: u8 = 30;
/// Steps that an echo is ahead of the newest index of a server that goes on with a connection: the server before gave
/// two indexes more, and the client has told of an older echo first.
const AHEAD_MAX: u8 = 2;
/// From here on an index lasts longer, so that the remaining values last for retransmissions.
const SCARCE_LEAD: u8 = 16;
/// An index lasts this share of a smoothed round trip.
const STEPS_PER_ROUND_TRIP: u32 = 16;
/// The same while values are scarce.
const SCARCE_STEPS_PER_ROUND_TRIP: u32 = 4;
/// Weight of the smoothed round trip in each update (RFC 6298, 2).
const SMOOTHING_WEIGHT: u32 = 8;
/// Longer samples count as this long, ticks: no sum overflows.
const LONGEST_ROUND_TRIP: u32 = 1 << 28;
/// Entries of the table: half of the values of an index.
pub const ENTRY_COUNT: usize = 32;

/// Order of the values of a connection, modulo 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Index(u8);

impl Index {
    /// The index with this number modulo 64.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(number % INDEX_COUNT)
    }

    /// The highest 6 bits of a value.
    #[must_use]
    pub const fn of_wire(value: u32) -> Self {
        Self(super::low_byte(value >> super::INDEX_SHIFT, 6))
    }

    /// 0 to 63.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// How many steps `self` is ahead of `other`, 0 to 63.
    #[must_use]
    pub const fn steps_after(self, other: Self) -> u8 {
        self.0.wrapping_sub(other.0) % INDEX_COUNT
    }

    /// The index `steps` further on.
    #[must_use]
    pub const fn advanced(self, steps: u8) -> Self {
        Self::new(self.0.wrapping_add(steps))
    }

    const fn entry(self) -> usize {
        self.0 as usize % ENTRY_COUNT
    }
}

/// A segment of the server's TCP on its way to the client.
#[derive(Debug, Clone, Copy)]
pub struct Departure {
    /// The TSval of the server's TCP, ticks.
    pub tsval: u32,
    /// The client may have had the same bytes before.
    pub is_retransmission: bool,
    /// The state is another than that of the segment before.
    pub has_new_state: bool,
    /// The segment has bytes, and the client has acknowledged all bytes before.
    pub is_alone: bool,
}

/// The index that a segment gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assigned {
    /// No segment had this index before.
    New(Index),
    /// The index of the segment before: state and value stay the same.
    Same(Index),
    /// A new index was needed, and the newest echo is too old: the segment leaves with the old state.
    Exhausted(Index),
}

impl Assigned {
    /// The index.
    #[must_use]
    pub const fn index(self) -> Index {
        match self {
            Self::New(index) | Self::Same(index) | Self::Exhausted(index) => index,
        }
    }
}

/// The server's timestamps behind the indexes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EchoTable {
    /// The server's TSval, by index modulo 32.
    tsvals: [u32; ENTRY_COUNT],
    newest: Index,
    echoed: Index,
    /// The newest TSval of the server.
    newest_tsval: u32,
    /// Smoothed round trip, eighths of a tick; 0 before the first echo.
    scaled_round_trip: u32,
    /// The client has echoed an index that this server gave.
    has_echo: bool,
}

/// The parts of an [`EchoTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoParts {
    /// The server's TSval, by index modulo 32.
    pub tsvals: [u32; ENTRY_COUNT],
    /// The newest index.
    pub newest: Index,
    /// The newest index that the client has echoed.
    pub echoed: Index,
    /// The newest TSval of the server.
    pub newest_tsval: u32,
    /// Smoothed round trip, eighths of a tick; 0 before the first echo.
    pub scaled_round_trip: u32,
    /// The client has echoed an index that this server gave.
    pub has_echo: bool,
}

impl EchoTable {
    /// The table of a connection whose SYN-ACK has this index and this TSval of the server.
    #[must_use]
    pub const fn new(index: Index, tsval: u32) -> Self {
        Self {
            tsvals: [tsval; ENTRY_COUNT],
            newest: index,
            echoed: index,
            newest_tsval: tsval,
            scaled_round_trip: 0,
            has_echo: true,
        }
    }

    /// The table of a revived connection: the client has last echoed this index. The new server's TCP begins with this
    /// TSval.
    ///
    /// The dead member's newest index is [`MAX_LEAD`] ahead of the echo at most, and an index that is half of the space
    /// ahead would be refused. Two indexes are between: for an acknowledgement, which may be lost, and for the segment
    /// on its own that follows. The next one comes with the next echo.
    #[must_use]
    pub const fn revived(echoed: Index, tsval: u32) -> Self {
        let mut table = Self::new(echoed.advanced(MAX_LEAD - 1), tsval);
        table.echoed = echoed;
        table.has_echo = false;
        table
    }

    /// Smoothed round trip, ticks of the server's TSval.
    #[must_use]
    pub const fn round_trip(&self) -> u32 {
        self.scaled_round_trip / SMOOTHING_WEIGHT
    }

    /// Assigns an index to a leaving segment.
    ///
    /// A retransmission gets an index of its own, so that the server's TCP can tell the echo of the retransmission from
    /// the echo of the original (RFC 3522). In the same tick no TCP can tell these apart, and the index is the same.
    ///
    /// A segment on its own may have one index more: nothing else would bring a newer echo if the newest index was in a
    /// lost acknowledgement. The segment is sent again until the client has it.
    pub fn assign(&mut self, departure: Departure) -> Assigned {
        let elapsed = departure.tsval.wrapping_sub(self.newest_entry());
        self.newest_tsval = departure.tsval;
        let wants_new = departure.has_new_state
            || (departure.is_retransmission && elapsed != 0)
            || elapsed >= self.index_duration();
        if !wants_new {
            return Assigned::Same(self.newest);
        }
        if self.newest.steps_after(self.echoed) < MAX_LEAD + u8::from(departure.is_alone) {
            self.newest = self.newest.advanced(1);
            self.tsvals[self.newest.entry()] = departure.tsval;
            return Assigned::New(self.newest);
        }
        if departure.is_retransmission {
            // Originals have the same index. The later time keeps the server's TCP from an undo without a reason.
            self.tsvals[self.newest.entry()] = departure.tsval;
        }
        Assigned::Exhausted(self.newest)
    }

    /// Translates an echo: the result is the TSval that the server's TCP must read.
    ///
    /// `has_old_ack`: the segment acknowledges less than an earlier segment did. Such a segment was delayed, and the
    /// index may be of an earlier cycle: the segment tells nothing about the newest echo.
    pub fn on_echo(&mut self, index: Index, has_old_ack: bool) -> u32 {
        let ahead = index.steps_after(self.newest);
        if !self.has_echo && (1..=AHEAD_MAX).contains(&ahead) && !has_old_ack {
            self.newest = index;
            self.tsvals[index.entry()] = self.newest_tsval;
        }
        let behind = self.newest.steps_after(index);
        if has_old_ack || behind > MAX_LEAD {
            let known = behind.min(MAX_LEAD);
            return self.tsvals[self.newest.advanced(INDEX_COUNT - known).entry()];
        }
        if behind < self.newest.steps_after(self.echoed) {
            self.echoed = index;
            self.has_echo = true;
        }
        let tsval = self.tsvals[index.entry()];
        self.update_round_trip(self.newest_tsval.wrapping_sub(tsval));
        tsval
    }

    /// The parts, for the program in the kernel.
    #[must_use]
    pub const fn parts(&self) -> EchoParts {
        EchoParts {
            tsvals: self.tsvals,
            newest: self.newest,
            echoed: self.echoed,
            newest_tsval: self.newest_tsval,
            scaled_round_trip: self.scaled_round_trip,
            has_echo: self.has_echo,
        }
    }

    /// The table of these parts.
    #[must_use]
    pub const fn of_parts(parts: EchoParts) -> Self {
        Self {
            tsvals: parts.tsvals,
            newest: parts.newest,
            echoed: parts.echoed,
            newest_tsval: parts.newest_tsval,
            scaled_round_trip: parts.scaled_round_trip,
            has_echo: parts.has_echo,
        }
    }

    const fn newest_entry(&self) -> u32 {
        self.tsvals[self.newest.entry()]
    }

    /// How long the newest index lasts, ticks.
    fn index_duration(&self) -> u32 {
        let steps = if self.newest.steps_after(self.echoed) < SCARCE_LEAD {
            STEPS_PER_ROUND_TRIP
        } else {
            SCARCE_STEPS_PER_ROUND_TRIP
        };
        (self.round_trip() / steps).max(1)
    }

    /// The sample is the time since the echoed segment left, up to the newest departure.
    fn update_round_trip(&mut self, sample: u32) {
        let sample = sample.min(LONGEST_ROUND_TRIP);
        self.scaled_round_trip = match self.scaled_round_trip {
            0 => sample * SMOOTHING_WEIGHT,
            scaled => scaled - scaled / SMOOTHING_WEIGHT + sample,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn departure(tsval: u32) -> Departure {
        Departure {
            tsval,
            is_retransmission: false,
            has_new_state: false,
            is_alone: false,
        }
    }

    #[test]
    fn index_of_syn_ack_is_translated_exactly() {
        let mut table = EchoTable::new(Index::new(63), 1000);
        assert_eq!(table.on_echo(Index::new(63), false), 1000);
    }

    #[test]
    fn retransmission_in_same_tick_shares_the_index() {
        let mut table = EchoTable::new(Index::new(0), 10);
        let retransmission = |tsval| Departure {
            is_retransmission: true,
            ..departure(tsval)
        };
        assert_eq!(
            table.assign(retransmission(10)),
            Assigned::Same(Index::new(0))
        );
        assert_eq!(
            table.assign(retransmission(11)),
            Assigned::New(Index::new(1))
        );
        assert_eq!(table.on_echo(Index::new(1), false), 11);
    }

    #[test]
    fn index_without_echo_stands_still_at_the_limit() {
        let mut table = EchoTable::new(Index::new(50), 0);
        for tick in 1..=30 {
            assert_eq!(
                table.assign(departure(tick)),
                Assigned::New(Index::new(50).advanced(super::super::low_byte(tick, 8)))
            );
        }
        assert_eq!(
            table.assign(departure(31)),
            Assigned::Exhausted(Index::new(80))
        );
        assert_eq!(table.on_echo(Index::new(51), false), 1);
        assert!(matches!(table.assign(departure(60)), Assigned::New(_)));
    }

    #[test]
    fn segment_on_its_own_has_one_index_more() {
        let mut table = EchoTable::new(Index::new(0), 0);
        for tick in 1..=30 {
            table.assign(departure(tick));
        }
        let alone = |tsval| Departure {
            has_new_state: true,
            is_alone: true,
            ..departure(tsval)
        };
        assert_eq!(table.assign(alone(40)), Assigned::New(Index::new(31)));
        assert_eq!(table.assign(alone(41)), Assigned::Exhausted(Index::new(31)));
        assert_eq!(table.on_echo(Index::new(31), false), 40);
    }

    #[test]
    fn delayed_echo_does_not_move_the_newest_echo() {
        let mut table = EchoTable::new(Index::new(0), 0);
        for tick in 1..=30 {
            table.assign(departure(tick));
        }
        assert_eq!(table.on_echo(Index::new(20), true), 20);
        assert_eq!(
            table.assign(departure(90)),
            Assigned::Exhausted(Index::new(30))
        );
        assert_eq!(
            table.on_echo(Index::new(31), false),
            0,
            "of an earlier cycle"
        );
        assert_eq!(
            table.assign(departure(91)),
            Assigned::Exhausted(Index::new(30))
        );
        table.on_echo(Index::new(20), false);
        assert_eq!(table.assign(departure(92)), Assigned::New(Index::new(31)));
    }

    /// The first segment of the client was older than its newest echo.
    #[test]
    fn echo_of_the_dead_servers_last_index_is_learned() {
        for lead in [MAX_LEAD, MAX_LEAD + 1] {
            let echoed = Index::new(50);
            let dead = echoed.advanced(lead);
            let mut table = EchoTable::revived(echoed, 7);
            table.assign(departure(8));
            assert_eq!(table.on_echo(dead, false), 8);
            let next = table.assign(Departure {
                is_retransmission: true,
                ..departure(9)
            });
            assert_eq!(next, Assigned::New(dead.advanced(1)));
        }
    }

    /// An acknowledgement and a segment on its own, in whatever states, however often these are sent.
    #[test]
    fn revived_connection_has_two_indexes_before_an_echo() {
        for has_new_state in [false, true] {
            let echoed = Index::new(60);
            let dead = echoed.advanced(MAX_LEAD);
            let mut table = EchoTable::revived(echoed, 7);
            let lead = |table: &mut EchoTable, tsval, is_alone| {
                let departure = Departure {
                    has_new_state,
                    is_alone,
                    ..departure(tsval)
                };
                let index = table.assign(departure).index();
                assert!(index.steps_after(echoed) < INDEX_COUNT / 2);
                index.steps_after(dead)
            };
            for tsval in 8..100 {
                assert_eq!(lead(&mut table, tsval, false), 0);
            }
            for tsval in 100..200 {
                assert_eq!(lead(&mut table, tsval, true), 1);
            }
            table.on_echo(echoed.advanced(MAX_LEAD + 1), false);
            assert!(matches!(table.assign(departure(300)), Assigned::New(_)));
        }
    }
}
