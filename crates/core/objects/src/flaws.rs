//! Mistakes that the simulator plants: the witness must notice each. Without the feature `flaws` no mistake can be
//! switched on.

use alloc::vec::Vec;

use wire::SeqNumber;

use crate::flow::released_with_response;
use crate::isn::Slot;
use crate::record::Record;
use crate::store::MembersFound;

/// Mistakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flaws {
    /// Odd and even turns release equally many bytes of a request.
    pub releases_equally: bool,
    /// A client with bytes behind a hole counts as idle.
    pub overlooks_holes: bool,
    /// The first byte of a response's part is not in the tag.
    pub forgets_first_byte: bool,
    /// A client whose record is missing counts as idle.
    pub takes_missing_for_idle: bool,
    /// A record counts as stored when it is sent: of clients with timestamps.
    pub releases_unconfirmed: bool,
    /// The same, of clients without timestamps.
    pub passes_unconfirmed: bool,
    /// Records of earlier connections are taken for records of the connection.
    pub skips_numbers: bool,
    /// Of several records of a connection the oldest counts.
    pub prefers_older: bool,
    /// The server hears that the client has chunks which the programs have not read.
    pub skips_chunks: bool,
    /// The list of members in the store is not read.
    pub ignores_list: bool,
}

impl Flaws {
    const fn has(is_planted: bool) -> bool {
        cfg!(feature = "flaws") && is_planted
    }

    pub(crate) const fn released_with_response(self, turn_number: u32) -> u8 {
        if Self::has(self.releases_equally) {
            return 1;
        }
        released_with_response(turn_number)
    }

    pub(crate) const fn sees_holes(self) -> bool {
        !Self::has(self.overlooks_holes)
    }

    pub(crate) const fn first_byte(self, first: u64) -> u64 {
        if Self::has(self.forgets_first_byte) {
            return 0;
        }
        first
    }

    pub(crate) const fn tells_missing(self) -> bool {
        !Self::has(self.takes_missing_for_idle)
    }

    pub(crate) const fn awaits_confirmation(self, has_timestamps: bool) -> bool {
        match has_timestamps {
            true => !Self::has(self.releases_unconfirmed),
            false => !Self::has(self.passes_unconfirmed),
        }
    }

    pub(crate) const fn prefers_newer(self) -> bool {
        !Self::has(self.prefers_older)
    }

    pub(crate) const fn reads_all_chunks(self) -> bool {
        !Self::has(self.skips_chunks)
    }

    pub(crate) fn listed(self, found: MembersFound) -> MembersFound {
        let members = if Self::has(self.ignores_list) {
            Vec::new()
        } else {
            found.members
        };
        MembersFound { members, ..found }
    }

    /// A record with the numbers of another connection; `None` without the mistake.
    pub(crate) fn renumbered(
        self,
        record: &Record,
        slot: Slot,
        server_isn: SeqNumber,
        seq: SeqNumber,
    ) -> Option<Record> {
        Self::has(self.skips_numbers).then(|| {
            let mut record = record.clone();
            let is_near = record.is_near(seq);
            (record.slot, record.server_isn) = (slot, server_isn);
            if let Some(turn) = record.turns.last_mut().filter(|_| !is_near) {
                turn.request_start = seq + 1;
            }
            record
        })
    }
}
