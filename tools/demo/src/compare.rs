//! Comparison of received and expected bytes, and pauses.

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Measures the longest time between two moments of progress.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    last: Option<Instant>,
    longest: Duration,
}

impl Pauses {
    /// Notes progress.
    pub(crate) fn progress(&mut self) {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.longest = self.longest.max(now - last);
        }
    }

    /// Longest time without progress.
    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }
}

/// Compares both streams to their ends, and returns their length. Calls `on_read` after each read of `got`.
///
/// # Errors
/// The streams differ, or cannot be read.
pub(crate) fn same(
    mut got: impl Read,
    mut expected: impl Read,
    mut on_read: impl FnMut(),
) -> Result<u64> {
    let (mut ours, mut theirs) = (vec![0; 64 << 10], Vec::with_capacity(64 << 10));
    let mut offset = 0;
    loop {
        let length = got.read(&mut ours)?;
        theirs.clear();
        if length == 0 {
            let more = expected.read_to_end(&mut theirs)?;
            ensure!(more == 0, "it ends after {offset} bytes, {more} too early");
            return Ok(offset);
        }
        on_read();
        expected
            .by_ref()
            .take(u64::try_from(length)?)
            .read_to_end(&mut theirs)?;
        let differs = ours[..length].iter().zip(&theirs).position(|(a, b)| a != b);
        if let Some(position) = differs {
            let offset = offset + u64::try_from(position)?;
            anyhow::bail!("byte {offset} is wrong");
        }
        offset += u64::try_from(theirs.len())?;
        ensure!(
            theirs.len() == length,
            "more than the {offset} bytes that there are"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(got: &[u8], expected: &[u8]) -> Result<u64, String> {
        same(got, expected, || {}).map_err(|error| error.to_string())
    }

    #[test]
    fn any_difference_is_found() {
        let long: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        assert_eq!(compared(&long, &long), Ok(200_000));
        assert_eq!(compared(b"", b""), Ok(0));
        assert!(
            compared(&long[..100_000], &long)
                .unwrap_err()
                .contains("100000 too early")
        );
        assert!(
            compared(&long, &long[..100_000])
                .unwrap_err()
                .contains("more than the 100000")
        );
        let mut wrong = long.clone();
        wrong[150_000] ^= 1;
        assert_eq!(compared(&wrong, &long).unwrap_err(), "byte 150000 is wrong");
    }
}
