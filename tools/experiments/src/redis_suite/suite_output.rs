//! The output of a run of the suite about the tests.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

/// The last line of the suite after all units.
const END: &str = "The End";

/// A run of the suite.
#[derive(Debug, Default)]
pub(super) struct SuiteOutput {
    /// Tests by name, and the number of passes of each: some tests run for several encodings under the same name.
    passed: BTreeMap<String, usize>,
    failed: Vec<String>,
    /// All units were tried.
    pub(super) is_whole: bool,
    took: Duration,
    kills: usize,
    /// The complaints of `serve`.
    pub(super) lost: Vec<String>,
}

impl SuiteOutput {
    /// Reads the output of a finished suite, with the duration and the number of kills.
    pub(super) fn read(file: &Path, took: Duration, kills: usize) -> Result<Self> {
        let text = fs::read(file)?;
        let mut suite = Self::of(&String::from_utf8_lossy(&text));
        (suite.took, suite.kills) = (took, kills);
        Ok(suite)
    }

    fn of(text: &str) -> Self {
        let mut suite = Self::default();
        for line in text.lines() {
            if let Some(test) = line.strip_prefix("[ok]: ") {
                let name = test.rsplit_once(" (").map_or(test, |(name, _)| name);
                *suite.passed.entry(name.to_owned()).or_default() += 1;
            } else if line.starts_with("[err]: ") || line.starts_with("[exception]: ") {
                suite.failed.push(line.to_owned());
            } else if line.contains(END) {
                suite.is_whole = true;
            }
        }
        suite
    }

    pub(super) fn passed(&self) -> usize {
        self.passed.values().sum()
    }

    /// Tests that passed here more often than in `other`.
    pub(super) fn passed_but_not_in(&self, other: &Self) -> Vec<&str> {
        let less =
            |name: &str, count: usize| other.passed.get(name).is_none_or(|&there| there < count);
        let missing = self
            .passed
            .iter()
            .filter(|(name, count)| less(name, **count));
        missing.map(|(name, _)| name.as_str()).collect()
    }
}

impl fmt::Display for SuiteOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed, seconds) = (self.passed(), self.failed.len(), self.took.as_secs());
        write!(f, "{passed} passed, {failed} failed in {seconds} s")?;
        if self.kills > 0 {
            write!(f, "; the server was killed {} times", self.kills)?;
        }
        if !self.is_whole {
            write!(f, "; it stood still, or its server ended")?;
        }
        for line in self.failed.iter().chain(&self.lost) {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Testing unit/x\n[ok]: SADD (a set) (3 ms)\n[ok]: SADD (a set) (4 ms)\n\
         [err]: SPOP in tests/unit/x.tcl\n[ok]: PING (0 ms)\n\n                   The End\n";

    #[test]
    fn suite_tests_are_counted_by_name() {
        let suite = SuiteOutput::of(TEXT);
        assert_eq!(
            (suite.passed(), suite.failed.len(), suite.is_whole),
            (3, 1, true)
        );
        assert_eq!(suite.passed["SADD (a set)"], 2);
    }

    #[test]
    fn test_passed_less_often_is_missing() {
        let plain = SuiteOutput::of(TEXT);
        let killed =
            SuiteOutput::of("[ok]: SADD (a set) (9 ms)\n[ok]: PING (1 ms)\n[ok]: more (1 ms)\n");
        assert_eq!(plain.passed_but_not_in(&killed), ["SADD (a set)"]);
        assert!(killed.passed_but_not_in(&plain) == ["more"] && !killed.is_whole);
    }
}
