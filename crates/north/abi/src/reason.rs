//! A sentence of a process for the operator.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Longest reason.
const REASON_MAX_BYTES: usize = 400;

/// A sentence in memory that outlives the process.
#[derive(Debug)]
#[repr(C)]
pub struct Reason {
    length: AtomicU32,
    bytes: [AtomicU8; REASON_MAX_BYTES],
}

impl Default for Reason {
    fn default() -> Self {
        Self {
            length: AtomicU32::new(0),
            bytes: [const { AtomicU8::new(0) }; REASON_MAX_BYTES],
        }
    }
}

impl Reason {
    /// Stores the parts as one sentence; bytes beyond the limit are left out. Only the first sentence is kept.
    pub fn say(&self, parts: &[&[u8]]) {
        if self.length.load(Ordering::Acquire) != 0 {
            return;
        }
        let said = parts.iter().copied().flatten();
        let mut length = 0;
        for (place, byte) in self.bytes.iter().zip(said) {
            place.store(*byte, Ordering::Relaxed);
            length += 1;
        }
        self.length.store(length, Ordering::Release);
    }

    /// Removes the sentence.
    pub fn forget(&self) {
        self.length.store(0, Ordering::Release);
    }

    /// The bytes of the sentence.
    pub fn said(&self) -> impl Iterator<Item = u8> {
        let length = self.length.load(Ordering::Acquire) as usize;
        let said = self.bytes.iter().take(length);
        said.map(|byte| byte.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn first_reason_stays_until_reset() {
        let reason = Reason::default();
        assert_eq!(reason.said().count(), 0);
        reason.say(&[b"one ", b"sentence"]);
        reason.say(&[b"another"]);
        assert_eq!(reason.said().collect::<Vec<_>>(), b"one sentence");
        reason.forget();
        reason.say(&[&[b'x'; REASON_MAX_BYTES], b"y"]);
        assert_eq!(reason.said().collect::<Vec<_>>(), [b'x'; REASON_MAX_BYTES]);
    }
}
