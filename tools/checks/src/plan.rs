//! Which steps a run has.

use std::fs;

use anyhow::{Context, Result};
use rand::Rng;

use crate::load::{Load, WithoutSessions};
use crate::nextest::{self, Privileges, Selection};
use crate::report::{Counts, Report};
use crate::share::Share;
use crate::tool::{Tools, succeeds};
use crate::{Loaded, Shared};

/// How much of the long checks a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// A share, drawn from the seed.
    Share,
    Whole,
}

/// Tests of which each row costs seconds and differs from the other rows by one choice only.
const MATRICES: &str = "binary_id(=e2e::kill_matrix) | (binary_id(=e2e::takeover) & test(/^matrix::/)) | \
    binary_id(=e2e::make_tools)";

/// Tests of servers with state, of pools, and of hosts that take over: most of the time of all tests.
const MANY: &str = "binary_id(=e2e::north) | binary_id(=e2e::objects) | \
                    (binary_id(=e2e::takeover) & not test(/^matrix::/))";

/// Tests of many connections, of which smaller tests do the same.
const LONG: &str =
    "binary_id(=e2e::objects) & test(/^load::thousand|^programs::transfers|^matrix::/)";

/// Tests that run once more, with a logger on another machine.
const LINKED: &str = "binary_id(=e2e::kill_matrix) | binary_id(=e2e::recovery) | binary_id(=e2e::network) | \
    binary_id(=e2e::firewall)";

/// Tests of `outlive make` and `outlive speculate`.
const MAKING: &str = "package(e2e) & binary(/^(make|speculation)/)";

/// Seconds that each target is fuzzed for in the whole run.
const FUZZ_SECONDS: &str = "60";

/// Runs format, tidy, tests and lints; for the whole, all other checks, too. Returns whether all passed.
///
/// # Errors
/// If this is not started in a checkout.
pub(crate) fn test(shared: Shared, extent: Extent) -> Result<bool> {
    let tools = Tools::find()?;
    let seed = shared.seed.unwrap_or_else(fresh_seed);
    println!("seed {seed}");
    let mut share = Share::of(seed);
    let mut report = Report::default();
    let command = |command: &mut std::process::Command| Ok(Counts::one(succeeds(command)?));

    report.step("format", || command(&mut tools.cargo(&["fmt", "--check"])));
    report.step("tidy", || command(&mut tidy(&tools)));
    report.step("lock of the fuzz targets", || {
        command(&mut fuzz_lock(&tools))
    });
    let criu = tools.target.join("criu");
    report.step("CRIU", || command(tools.script("criu.sh").arg(criu)));
    let built = report.step("build of the tests", || build(&tools));
    if built.failed == 0 {
        tests(&tools, shared, seed, extent, &mut share, &mut report);
    }
    report.step("clippy", || command(&mut clippy(&tools)));
    if extent == Extent::Whole {
        whole(&tools, seed, &mut report);
    }
    let plan = match extent {
        Extent::Share => "test",
        Extent::Whole => "test-all",
    };
    let jobs = shared.jobs;
    Ok(report.finish(&format!("make {plan} ARGS='--seed {seed} --jobs {jobs}'")))
}

/// Runs every test once, and a share of the tests with a logger on another machine.
fn tests(
    tools: &Tools,
    shared: Shared,
    seed: u64,
    extent: Extent,
    share: &mut Share,
    report: &mut Report,
) {
    let mut environment = seeds(seed);
    if extent == Extent::Share {
        environment.push(("OUTLIVE_SIM_PART", share.schedules()));
    }
    let mut run = |name: &str, filter: Result<String>, environment: &[_]| {
        report.step(name, || {
            let filter = filter?;
            let jobs = shared.jobs;
            nextest::run(
                tools,
                &Selection {
                    filter,
                    jobs,
                    environment,
                    privileges: Privileges::All,
                },
            )
        });
    };
    let filter = match extent {
        Extent::Whole => Ok("all()".to_owned()),
        Extent::Share => drawn(tools, share, MATRICES, 4).and_then(|mut rows| {
            rows.extend(drawn(tools, share, &format!("({MANY}) & not ({LONG})"), 3)?);
            let left_out = format!("{MATRICES} | {MANY} | {LONG}");
            Ok(format!("not ({left_out}) | {}", rows.join(" | ")))
        }),
    };
    run("tests", filter, &environment);
    let filter = match extent {
        Extent::Whole => Ok(LINKED.to_owned()),
        Extent::Share => drawn(tools, share, LINKED, 4).map(|tests| tests.join(" | ")),
    };
    environment.push(("OUTLIVE_E2E_LINK", "1".to_owned()));
    run("tests with a linked logger", filter, &environment);
}

/// Checks that take long, or need more than this host has.
fn whole(tools: &Tools, seed: u64, report: &mut Report) {
    let command = |command: &mut std::process::Command| Ok(Counts::one(succeeds(command)?));
    report.step("tests of the next version", || {
        command(&mut next_version_tests(tools))
    });
    report.step("documentation", || command(&mut documentation(tools)));
    report.step("examples", || command(&mut examples(tools)));
    report.step("oldest Rust", || command(&mut tools.script("msrv.sh")));
    report.step("dependencies", || command(&mut tools.script("deny.sh")));
    report.step("fuzzing", || {
        let mut fuzz = tools.script("fuzz.sh");
        fuzz.arg(FUZZ_SECONDS)
            .env("OUTLIVE_FUZZ_SEED", seed.to_string());
        command(&mut fuzz)
    });
}

/// All end-to-end tests beside busy processes, as often as wanted. Whether everything passed.
///
/// # Errors
/// If this is not started in a checkout, or no busy process can be started.
pub(crate) fn loaded(loaded: Loaded) -> Result<bool> {
    let tools = Tools::find()?;
    let seed = loaded.shared.seed.unwrap_or_else(fresh_seed);
    println!("seed {seed}");
    let mut report = Report::default();
    let criu = tools.target.join("criu");
    report.step("CRIU", || {
        Ok(Counts::one(succeeds(tools.script("criu.sh").arg(criu))?))
    });
    let built = report.step("build of the tests", || build(&tools));
    if built.failed == 0 {
        let _load = Load::start(loaded.busy)?;
        for run in 0..loaded.runs {
            let seed = seed.wrapping_add(run);
            let name = format!("run {} beside {} busy processes", run + 1, loaded.busy);
            let counts = report.step(&name, || beside_load(&tools, loaded.shared.jobs, seed));
            println!("{name}, seed {seed}: {counts}");
        }
    }
    let Loaded { runs, busy, shared } = loaded;
    let jobs = shared.jobs;
    Ok(report.finish(&format!(
        "make test-loaded ARGS='--runs {runs} --seed {seed} --busy {busy} --jobs {jobs}'"
    )))
}

/// Runs all end-to-end tests once. Beside busy processes a command of `outlive make` that runs only when no other
/// process wants to would take minutes: the tests of `outlive make` run where the command takes its turn, by
/// scheduling class and by session.
fn beside_load(tools: &Tools, jobs: usize, seed: u64) -> Result<Counts> {
    let run = |filter: String, privileges| {
        let environment = &seeds(seed);
        nextest::run(
            tools,
            &Selection {
                filter,
                jobs,
                environment,
                privileges,
            },
        )
    };
    let others = run(format!("package(e2e) - ({MAKING})"), Privileges::All)?;
    let _without = WithoutSessions::begin();
    let making = run(MAKING.to_owned(), Privileges::NoHurry)?;
    Ok(others.and(making))
}

/// Builds the program of the next version first: the build of the workspace puts the program under test in its place.
fn build(tools: &Tools) -> Result<Counts> {
    let nextest = succeeds(&mut tools.script("nextest.sh"))?;
    let next = nextest && next_version(tools)?;
    let mut tests = tools.cargo(&["nextest", "run", "--locked", "--workspace", "--no-run"]);
    Ok(Counts::one(next && succeeds(&mut tests)?))
}

/// The program with the maps of the next layout, which takes services over from the program under test. With the
/// workspace's dependencies as the tests have them, which `--workspace` and the small test ask for: no dependency is
/// built twice.
fn next_version(tools: &Tools) -> Result<bool> {
    let mut build = tools.cargo(&["build", "--locked", "--profile", "test", "--workspace"]);
    build.args(["--bin", "outlive", "--test", "plane"]);
    build.args(["--features", "outlive/next-version"]);
    if !succeeds(&mut build)? {
        return Ok(false);
    }
    let program = tools.next_version();
    if let Some(directory) = program.parent() {
        fs::create_dir_all(directory).context("no directory for the next version")?;
    }
    fs::copy(tools.outlive(), program).context("the next version is not copied")?;
    Ok(true)
}

/// The tests of the crates whose formats the next version raises, as crates of that version. With the program, which
/// asks for the dependencies as [`next_version`] has them.
fn next_version_tests(tools: &Tools) -> std::process::Command {
    let mut tests = tools.cargo(&["nextest", "run", "--locked", "--no-fail-fast"]);
    tests.args(["--package", "protocol", "--package", "wal"]);
    tests.args(["--package", "logger", "--package", "outlive"]);
    tests.args(["--lib", "--test", "it", "--test", "crashes"]);
    tests.args(["--features", "logger/next-version,outlive/next-version"]);
    tests
}

/// Limits of words, names, structure, constants and columns.
fn tidy(tools: &Tools) -> std::process::Command {
    let mut tidy = tools.cargo(&["run", "--quiet", "--locked", "--profile", "test"]);
    tidy.args(["--package", "tidy"]);
    tidy
}

/// The fuzz targets are built in the whole run alone, and a new dependency of a crate belongs into their lock, too.
fn fuzz_lock(tools: &Tools) -> std::process::Command {
    tools.cargo(&[
        "fetch",
        "--quiet",
        "--locked",
        "--manifest-path",
        "fuzz/Cargo.toml",
    ])
}

/// With the profile of the tests: clippy and the tests share compiled dependencies.
fn clippy(tools: &Tools) -> std::process::Command {
    let mut clippy = tools.cargo(&["clippy", "--locked", "--workspace", "--all-targets"]);
    clippy.args(["--profile", "test", "--", "-D", "warnings"]);
    clippy
}

/// The pages. With the profile of the tests, as clippy.
fn documentation(tools: &Tools) -> std::process::Command {
    let mut pages = tools.cargo(&["doc", "--locked", "--workspace", "--no-deps"]);
    pages.args(["--profile", "test"]);
    pages.env("RUSTDOCFLAGS", "-D warnings");
    pages
}

/// The examples in the pages, which nextest does not run: there are none so far, and rustdoc takes a while to find that
/// for each crate.
fn examples(tools: &Tools) -> std::process::Command {
    tools.cargo(&["test", "--quiet", "--locked", "--workspace", "--doc"])
}

/// Draws a share, one in `one_of`, of the tests that a filter chooses.
fn drawn(tools: &Tools, share: &mut Share, filter: &str, one_of: usize) -> Result<Vec<String>> {
    Ok(share.draw(nextest::list(tools, filter)?, one_of))
}

/// The environment variables from which every random choice of the tests follows.
fn seeds(seed: u64) -> Vec<(&'static str, String)> {
    ["OUTLIVE_SEED", "OUTLIVE_FUZZ_SEED", "PROPTEST_RNG_SEED"]
        .map(|name| (name, seed.to_string()))
        .to_vec()
}

/// Short enough to be typed again.
fn fresh_seed() -> u64 {
    rand::rng().random_range(1..1_000_000)
}
