//! `make kernels`: on which kernels the data plane loads, attaches and passes the tests.
//!
//! Debian's own kernels are booted in qemu, one after the other, each with this machine's files read-only (9p), so
//! that programs that were built here run there. [`packages`] gets the kernels through apt, into a cache; [`modules`]
//! finds the modules to load; [`guest`] is the booting machine, and returns the findings.

#![forbid(unsafe_code)]

mod guest;
mod modules;
mod packages;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use guest::{Findings, Guest, Tests};
use harness::task::{Interrupt, Interrupted, cache, ended, program};

/// A kernel of Debian's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kernel {
    /// Debian 11: Linux 5.10
    Bullseye,
    /// Debian 12: Linux 6.1
    Bookworm,
    /// Debian 13: Linux 6.12
    Trixie,
    /// Debian 13's backports: the newest kernel there
    TrixieBackports,
}

impl Kernel {
    const ALL: [Self; 4] = [
        Self::Bullseye,
        Self::Bookworm,
        Self::Trixie,
        Self::TrixieBackports,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Bullseye => "Debian 11",
            Self::Bookworm => "Debian 12",
            Self::Trixie => "Debian 13",
            Self::TrixieBackports => "Debian 13 backports",
        }
    }

    /// Whether the kernel is claimed as supported.
    fn is_claimed(self) -> bool {
        self != Self::Bullseye
    }

    /// Whether the machine's clock may follow the instructions. With qemu's `-icount`, Linux 6.1 waits for the second
    /// processor for ever.
    fn starts_with_counted_instructions(self) -> bool {
        !matches!(self, Self::Bullseye | Self::Bookworm)
    }

    /// The suite of the archive, and the separate suite of security updates, if any.
    fn suite(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Bullseye => ("bullseye", Some("bullseye-security")),
            Self::Bookworm => ("bookworm", Some("bookworm-security")),
            Self::Trixie => ("trixie", Some("trixie-security")),
            Self::TrixieBackports => ("trixie-backports", None),
        }
    }
}

/// Boot Debian's kernels in qemu, and report the kernels on which the data plane works
#[derive(Debug, Parser)]
#[command(name = "kernels", max_term_width = 100)]
pub(crate) struct Options {
    /// Boot only this kernel; repeat this option for more
    #[arg(long, value_enum, value_name = "KERNEL")]
    only: Vec<Kernel>,
    /// Directory of packages and unpacked kernels [default: outlive in the user's cache]
    #[arg(long, value_name = "DIRECTORY")]
    cache: Option<PathBuf>,
    /// Look for packages newer than the packages in the cache
    #[arg(long)]
    refresh: bool,
    /// URL of Debian's archive
    #[arg(long, value_name = "URL", default_value = "http://deb.debian.org")]
    mirror: String,
    /// Use the virtualization of the processor: faster, but not available in every virtual machine
    #[arg(long)]
    kvm: bool,
    /// Show the output of the machines
    #[arg(long)]
    console: bool,
    /// Number of boots of each kernel, one after another
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Time for which two servers are killed under load on each kernel, at the same time, in seconds; 0: no such kills
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    load: u64,
    /// Run only the packet tests and stacked devices with this text in their names
    #[arg(long, value_name = "TEXT", default_value = "")]
    tests: String,
}

/// The exit status is 0 when every kernel that we claim passes.
fn main() -> ExitCode {
    ended("kernels", run(&Options::parse()))
}

fn run(options: &Options) -> Result<bool> {
    install()?;
    let interrupt = Interrupt::on_signals()?;
    let guest = Guest {
        tests: Tests {
            packets: tests("dataplane", "it")?,
            stacked: tests("e2e", "stacked")?,
            load: tests("e2e", "load")?,
        },
        outlive: program(None, "outlive")?,
        reference_server: program(None, "reference-server")?,
        kvm: options.kvm,
        console: options.console,
        load: options.load,
        filter: options.tests.clone(),
        // Only a hang takes this long, also on a busy machine.
        limit: Duration::from_secs(7200 + 20 * options.load),
    };
    let cache = cache(options.cache.clone(), "kernels")?;
    let kernels = if options.only.is_empty() {
        Kernel::ALL.to_vec()
    } else {
        options.only.clone()
    };
    let mut table = Vec::new();
    let all = (0..options.runs).flat_map(|_| &kernels);
    for &kernel in all {
        interrupt.check()?;
        match boot(kernel, &guest, &cache, options, &interrupt) {
            Ok((release, findings)) => table.push((kernel, release, findings)),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            // The other kernels still have findings.
            Err(error) => table.push((kernel, "?".to_owned(), Findings::none(&error))),
        }
    }
    println!("\n{}", shown(&table));
    Ok(table.iter().all(|(kernel, _, findings)| {
        !kernel.is_claimed() || findings.pass(options.tests.is_empty())
    }))
}

/// Boots a kernel. Returns the release and the findings.
fn boot(
    kernel: Kernel,
    guest: &Guest,
    cache: &Path,
    options: &Options,
    interrupt: &Interrupt,
) -> Result<(String, Findings)> {
    let unpacked = packages::get(kernel, cache, &options.mirror, options.refresh)?;
    println!("{}: Linux {}", kernel.name(), unpacked.release);
    let start = Instant::now();
    let findings = guest.run(
        &unpacked,
        kernel.starts_with_counted_instructions(),
        interrupt,
    )?;
    println!("  {} ({} s)", findings.cells(), start.elapsed().as_secs());
    for line in findings.work.iter().chain(&findings.reasons) {
        println!("  {line}");
    }
    Ok((unpacked.release, findings))
}

/// The results as a table, and the reasons of failures.
fn shown(table: &[(Kernel, String, Findings)]) -> String {
    let mut text = String::from(
        "| kernel | Linux | loads | tcx | clsact | packet tests | stacked devices | under load | claimed |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for (kernel, release, findings) in table {
        let claimed = if kernel.is_claimed() { "yes" } else { "no" };
        text += &format!(
            "| {} | {release} | {} | {claimed} |\n",
            kernel.name(),
            findings.cells()
        );
    }
    for (_, release, findings) in table {
        for work in &findings.work {
            text += &format!("\n{release}: {work}");
        }
        for reason in &findings.reasons {
            text += &format!("\n{release}: {reason}");
        }
    }
    text
}

/// Installs missing packages, or names the missing packages at once.
fn install() -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/setup.sh");
    let status = Command::new(&script)
        .arg("kernels")
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {}", script.display()))?;
    ensure!(
        status.success(),
        "what booting kernels takes is not there (see above)"
    );
    Ok(())
}

/// A package's tests of that name, built.
fn tests(package: &str, name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--locked", "--package", package, "--test", name])
        .args(["--no-run", "--message-format", "json"])
        // From where `make` has started all: the target directory may be relative.
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "the tests {name} of {package} are not built"
    );
    let text = String::from_utf8(output.stdout)?;
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let built = messages.filter(|message| message["target"]["name"] == name);
    let mut executable =
        built.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    let path = executable.next_back();
    path.with_context(|| format!("cargo does not say where the tests {name} are"))
}
