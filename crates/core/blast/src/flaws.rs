//! Mistakes that the simulator plants: each must be noticed. Without the feature `flaws` no mistake can be switched on.

/// Mistakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flaws {
    /// A repeated packet has the round of the packet before: a nonce is used a second time.
    pub reuses_rounds: bool,
    /// The sender takes no notice of the receiver's credit.
    pub ignores_credit: bool,
    /// The sender does not probe while there is no credit.
    pub does_not_probe: bool,
    /// While the receiver is silent, the sender sends on.
    pub sends_into_silence: bool,
    /// Misplaced packets are copied in the order of their arrival, over other misplaced packets.
    pub copies_in_order: bool,
    /// A misplaced packet counts as received, but is not copied.
    pub forgets_copies: bool,
    /// A blast with a single missing packet counts as whole.
    pub counts_almost_whole: bool,
    /// A receiver answers as if a blast were whole of which it took nothing.
    pub answers_without_credit: bool,
    /// Packets that are there are expected, too.
    pub expects_present: bool,
    /// The sender lets data go that one of several receivers lacks.
    pub releases_early: bool,
    /// Blasts that the receiver has are sent on connections, too.
    pub sends_present: bool,
    /// A blast on a connection counts as whole from its first packet on.
    pub counts_begun: bool,
    /// A connection may carry a blast that another connection has begun.
    pub takes_claimed: bool,
}

impl Flaws {
    const fn has(is_planted: bool) -> bool {
        cfg!(feature = "flaws") && is_planted
    }

    pub(crate) const fn next_round(self, round: u16) -> Option<u16> {
        if Self::has(self.reuses_rounds) {
            return Some(round);
        }
        round.checked_add(1)
    }

    pub(crate) const fn heeds_credit(self) -> bool {
        !Self::has(self.ignores_credit)
    }

    pub(crate) const fn probes(self) -> bool {
        !Self::has(self.does_not_probe)
    }

    pub(crate) const fn waits_in_silence(self) -> bool {
        !Self::has(self.sends_into_silence)
    }

    pub(crate) const fn orders_copies(self) -> bool {
        !Self::has(self.copies_in_order)
    }

    pub(crate) const fn copies(self) -> bool {
        !Self::has(self.forgets_copies)
    }

    pub(crate) const fn missing_in_whole(self) -> u16 {
        if Self::has(self.counts_almost_whole) {
            return 1;
        }
        0
    }

    pub(crate) const fn hides_blast_without_credit(self) -> bool {
        !Self::has(self.answers_without_credit)
    }

    pub(crate) const fn expects_missing_only(self) -> bool {
        !Self::has(self.expects_present)
    }

    pub(crate) const fn awaits_all(self) -> bool {
        !Self::has(self.releases_early)
    }

    pub(crate) const fn skips_present(self) -> bool {
        !Self::has(self.sends_present)
    }

    pub(crate) const fn awaits_last_packet(self) -> bool {
        !Self::has(self.counts_begun)
    }

    pub(crate) const fn refuses_claimed(self) -> bool {
        !Self::has(self.takes_claimed)
    }
}
