//! Mistakes that the simulator plants: the witness must notice each. Without the feature `flaws` no mistake can be
//! switched on.

use crate::flow::released_with_response;

/// Mistakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flaws {
    /// Odd and even turns release equally many bytes of a request.
    pub releases_equally: bool,
    /// A client with bytes behind a hole counts as idle.
    pub overlooks_holes: bool,
    /// The first byte of a response's part is not in the tag.
    pub forgets_first_byte: bool,
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
}
