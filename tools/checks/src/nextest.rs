//! Runs tests by cargo-nextest, each in a separate process, several at a time.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::report::Counts;
use crate::tool::{Tools, succeeds};

/// Privileges of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privileges {
    All,
    /// Without `CAP_SYS_NICE`, as in many containers. `outlive make` could not hurry a command later, and so lets no
    /// command run last.
    NoHurry,
}

/// Tests that run together.
pub(crate) struct Selection<'a> {
    /// Which, in nextest's filter language.
    pub(crate) filter: String,
    pub(crate) jobs: usize,
    /// Environment variables of the tests.
    pub(crate) environment: &'a [(&'static str, String)],
    pub(crate) privileges: Privileges,
}

/// Runs all selected tests; a failure does not stop the run.
///
/// # Errors
/// If nextest is missing, no test was run, or the report cannot be read.
pub(crate) fn run(tools: &Tools, selection: &Selection<'_>) -> Result<Counts> {
    let report = tools.target.join("nextest/default/junit.xml");
    // An older run's counts must not be taken for this one's.
    drop(fs::remove_file(&report));
    let run = ["nextest", "run", "--locked", "--workspace"];
    let mut command = match selection.privileges {
        Privileges::All => tools.cargo(&run),
        Privileges::NoHurry => tools.cargo_without("sys_nice", &run),
    };
    command.args([
        "--no-fail-fast",
        "--test-threads",
        &selection.jobs.to_string(),
    ]);
    command.args(["-E", &selection.filter]);
    command.envs(
        selection
            .environment
            .iter()
            .map(|(name, value)| (name, value)),
    );
    let succeeded = succeeds(command.stdin(Stdio::null()))?;
    let text = fs::read_to_string(&report)
        .with_context(|| format!("the tests did not run: no {}", report.display()))?;
    let counts = counts(&text)?;
    ensure!(
        succeeded == (counts.failed == 0),
        "nextest's exit status contradicts its report ({counts})"
    );
    Ok(counts)
}

/// The tests that a filter chooses, each as a separate filter.
///
/// # Errors
/// If nextest cannot list the tests.
pub(crate) fn list(tools: &Tools, filter: &str) -> Result<Vec<String>> {
    let mut command = tools.cargo(&["nextest", "list", "--locked", "--workspace"]);
    command.args(["--message-format", "json", "-E", filter]);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.context("nextest cannot be run")?;
    ensure!(output.status.success(), "nextest does not list {filter}");
    let listed: Listed = serde_json::from_slice(&output.stdout).context("nextest's list")?;
    Ok(listed.filters())
}

/// Tests by binary, as nextest lists the tests, including tests that the filter does not choose.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Listed {
    rust_suites: BTreeMap<String, Suite>,
}

#[derive(Debug, Deserialize)]
struct Suite {
    #[serde(default)]
    testcases: BTreeMap<String, Case>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Case {
    filter_match: Match,
}

#[derive(Debug, Deserialize)]
struct Match {
    status: String,
}

impl Listed {
    fn filters(&self) -> Vec<String> {
        let suites = self.rust_suites.iter();
        let cases = suites.flat_map(|(binary, suite)| {
            let cases = suite.testcases.iter();
            let chosen = cases.filter(|(_, case)| case.filter_match.status == "matches");
            chosen.map(move |(test, _)| format!("(binary_id(={binary}) & test(={test}))"))
        });
        cases.collect()
    }
}

/// The counts in the first element of a JUnit report: `<testsuites … tests="3" failures="1" errors="0" …>`.
fn counts(report: &str) -> Result<Counts> {
    let start = report.find("<testsuites ").context("no test suites")?;
    let element = &report[start..];
    let element = &element[..element.find('>').context("an unfinished report")?];
    let number = |name: &str| -> Result<u64> {
        let (_, after) = element
            .split_once(&format!(" {name}=\""))
            .with_context(|| format!("no {name} in the report"))?;
        let digits = after.split('"').next().unwrap_or_default();
        digits
            .parse()
            .with_context(|| format!("{name} is {digits:?}"))
    };
    let failed = number("failures")? + number("errors")?;
    let passed = number("tests")?.checked_sub(failed);
    let passed = passed.context("more failures than tests")?;
    Ok(Counts { passed, failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="12" failures="2" errors="1" uuid="6b" time="3.5">
    <testsuite name="e2e::north" tests="9" disabled="0" errors="0" failures="0">"#;

    #[test]
    fn report_of_nextest_gives_the_counts_of_the_whole_run() {
        let expected = Counts {
            passed: 9,
            failed: 3,
        };
        assert_eq!(counts(REPORT).unwrap(), expected);
    }

    #[test]
    fn report_that_is_cut_off_is_an_error() {
        for length in 0..REPORT.find("time=").unwrap() {
            assert!(counts(&REPORT[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn listed_test_that_matches_becomes_a_filter_of_its_own() {
        let text = r#"{"test-count": 2, "rust-suites": {
            "e2e::takeover": {"kind": "test", "testcases": {
                "matrix::host_off": {"kind": "test", "ignored": false, "filter-match": {"status": "matches"}},
                "moves::back": {"ignored": false, "filter-match": {"status": "mismatch", "reason": "expression"}}}},
            "sim": {"status": "skipped"}}}"#;
        let listed: Listed = serde_json::from_str(text).unwrap();
        let expected = "(binary_id(=e2e::takeover) & test(=matrix::host_off))";
        assert_eq!(listed.filters(), [expected]);
    }
}
