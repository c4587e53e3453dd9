//! Ranges of versions, and the version that two programs agree on.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Versions of a format that a program speaks: all from the oldest to the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Bounds")]
pub struct Versions {
    oldest: u8,
    newest: u8,
}

/// [`Versions`] before the check.
#[derive(Deserialize)]
struct Bounds {
    oldest: u8,
    newest: u8,
}

impl Versions {
    /// The range from `oldest` to `newest`; `None` of version 0 and of an empty range.
    #[must_use]
    pub const fn new(oldest: u8, newest: u8) -> Option<Self> {
        if oldest == 0 || oldest > newest {
            return None;
        }
        Some(Self { oldest, newest })
    }

    /// A single version.
    ///
    /// # Panics
    ///
    /// Of version 0.
    #[must_use]
    pub const fn only(version: u8) -> Self {
        assert!(version > 0, "no format has version 0");
        Self {
            oldest: version,
            newest: version,
        }
    }

    /// The oldest version that is spoken.
    #[must_use]
    pub const fn oldest(self) -> u8 {
        self.oldest
    }

    /// The newest version that is spoken.
    #[must_use]
    pub const fn newest(self) -> u8 {
        self.newest
    }

    /// Whether `version` is spoken.
    #[must_use]
    pub const fn contains(self, version: u8) -> bool {
        self.oldest <= version && version <= self.newest
    }

    /// The newest version that both speak; `None`: no version is common.
    #[must_use]
    pub const fn agree(self, other: Self) -> Option<u8> {
        let newest = match self.newest < other.newest {
            true => self.newest,
            false => other.newest,
        };
        match self.contains(newest) && other.contains(newest) {
            true => Some(newest),
            false => None,
        }
    }
}

impl TryFrom<Bounds> for Versions {
    type Error = &'static str;

    fn try_from(bounds: Bounds) -> Result<Self, Self::Error> {
        Self::new(bounds.oldest, bounds.newest).ok_or("a range of versions has no version")
    }
}

/// "version 9", or "versions 9 to 10".
impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "version {}", self.newest),
            false => write!(f, "versions {} to {}", self.oldest, self.newest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_agree_on_newest_common_version() {
        let versions = |oldest, newest| Versions::new(oldest, newest).expect("a range");
        for (ours, theirs, agreed) in [
            ((9, 9), (9, 9), Some(9)),
            ((9, 10), (9, 9), Some(9)),
            ((9, 10), (10, 11), Some(10)),
            ((9, 12), (10, 11), Some(11)),
            ((9, 9), (10, 11), None),
            ((1, 255), (255, 255), Some(255)),
        ] {
            let (ours, theirs) = (versions(ours.0, ours.1), versions(theirs.0, theirs.1));
            assert_eq!(ours.agree(theirs), agreed);
            assert_eq!(theirs.agree(ours), agreed);
        }
    }

    #[test]
    fn empty_range_is_refused() {
        assert_eq!(Versions::new(0, 9), None);
        assert_eq!(Versions::new(10, 9), None);
        assert_eq!(Versions::new(9, 9), Some(Versions::only(9)));
    }

    #[test]
    fn range_is_told_in_words() {
        assert_eq!(Versions::only(9).to_string(), "version 9");
        let two = Versions::new(9, 10).expect("a range");
        assert_eq!(two.to_string(), "versions 9 to 10");
    }
}
