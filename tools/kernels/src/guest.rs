//! The machine that boots a kernel, and the machine's findings.
//!
//! The first process is a shell script in a small file system in memory. The script loads modules and mounts this
//! machine's files, read-only except for the directories that a running system writes. In these files the script runs
//! the programs that were built here. Findings are separate lines on the console.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::modules;
use super::packages::Unpacked;
use harness::task::Interrupt;

/// A single thread for all processors. With a thread for each, qemu 7.2 continues to execute kernel code that was
/// patched meanwhile: a kernel that switches tracepoints on and off ends with "Oops: int3" and "Fatal exception in
/// interrupt" (docs/kernels.md).
const EMULATION: [&str; 2] = ["-accel", "tcg,thread=single"];
/// The machine's clock follows the instructions of the processors: on a busy host all is slow, and no timeout is
/// exceeded.
const COUNTED: [&str; 2] = ["-icount", "shift=2,sleep=on"];
const REAL: [&str; 2] = ["-accel", "kvm"];

/// For the kernel: warnings and stacks are on the console; an emulated processor is slow, which is no stall.
const APPENDED: &str =
    "console=ttyS0 quiet loglevel=5 panic=-1 rcupdate.rcu_cpu_stall_timeout=300 watchdog_thresh=60";

/// The parameters of a machine, for any kernel.
pub(super) struct Guest {
    pub(super) tests: Tests,
    pub(super) outlive: PathBuf,
    pub(super) reference_server: PathBuf,
    /// Whether the processor runs the machine, or qemu emulates each instruction.
    pub(super) kvm: bool,
    /// Whether the machine's console is shown.
    pub(super) console: bool,
    /// For how long each server is killed under load, seconds; 0: no kills.
    pub(super) load: u64,
    /// Text in the names of the tests to run; without text, all.
    pub(super) filter: String,
    /// Longest time of the machine.
    pub(super) limit: Duration,
}

/// Programs with tests.
pub(super) struct Tests {
    /// Of the data plane, packet by packet.
    pub(super) packets: PathBuf,
    /// Of stacked devices.
    pub(super) stacked: PathBuf,
    /// Of servers that are killed under load.
    pub(super) load: PathBuf,
}

/// The findings on a kernel.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    loads: bool,
    tcx: Attached,
    clsact: Attached,
    packets: Count,
    stacked: Count,
    load: Count,
    /// The work of servers that were killed under load.
    pub(super) work: Vec<String>,
    /// Why something failed.
    pub(super) reasons: Vec<String>,
}

/// Of tests.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    passed: usize,
    failed: usize,
}

impl Count {
    /// `passed 3 failed 1`.
    fn of(said: &str) -> Self {
        let mut words = said.split(' ');
        let mut number = || words.by_ref().nth(1)?.parse().ok();
        Self {
            passed: number().unwrap_or(0),
            failed: number().unwrap_or(0),
        }
    }

    fn cell(self) -> String {
        format!("{} of {}", self.passed, self.passed + self.failed)
    }

    fn is_good(self, whole: bool) -> bool {
        (self.passed > 0 || !whole) && self.failed == 0
    }
}

/// A protected server whose connection survives the server's death, with programs attached this way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Attached {
    #[default]
    No,
    /// Not in this kernel: TCX came with 6.6.
    Missing,
    Yes,
}

impl Findings {
    /// No findings, for this reason.
    pub(super) fn none(error: &anyhow::Error) -> Self {
        Self {
            reasons: vec![format!("{error:#}")],
            ..Self::default()
        }
    }

    /// Whether all that this kernel can do works. `whole`: none of the tests was left out.
    pub(super) fn pass(&self, whole: bool) -> bool {
        self.loads
            && self.tcx != Attached::No
            && self.clsact == Attached::Yes
            && [self.packets, self.stacked].iter().all(|tests| tests.is_good(whole))
            // No tests at all without a load.
            && self.load.failed == 0
            && self.reasons.is_empty()
    }

    /// For a table: loads, tcx, clsact, tests.
    pub(super) fn cells(&self) -> String {
        let attached = |way| match way {
            Attached::No => "**no**",
            Attached::Missing => "not in this kernel",
            Attached::Yes => "yes",
        };
        format!(
            "{} | {} | {} | {} | {} | {}",
            if self.loads { "yes" } else { "**no**" },
            attached(self.tcx),
            attached(self.clsact),
            self.packets.cell(),
            self.stacked.cell(),
            self.load.cell(),
        )
    }

    /// Reads the lines that the script prints.
    fn of(console: &str) -> Self {
        let mut findings = Self::default();
        for line in console.lines() {
            // The console may put a message of the kernel before the marker.
            let Some((_, said)) = line.split_once("@@ ") else {
                continue;
            };
            let said = said.trim_end();
            let (what, how) = said.split_once(' ').unwrap_or((said, ""));
            let attached = match how {
                "yes" => Attached::Yes,
                "missing" => Attached::Missing,
                _ => Attached::No,
            };
            match what {
                "loads" => findings.loads = how == "yes",
                "tcx" => findings.tcx = attached,
                "clsact" => findings.clsact = attached,
                "packets" => findings.packets = Count::of(how),
                "stacked" => findings.stacked = Count::of(how),
                "load" => findings.load = Count::of(how),
                "work" => findings.work.push(how.to_owned()),
                "why" => findings.reasons.push(how.to_owned()),
                _ => {}
            }
        }
        findings.reasons.extend(complaint(console));
        findings
    }
}

/// Words of a kernel that is in trouble.
const COMPLAINTS: [&str; 7] = [
    "BUG:",
    "Oops",
    "int3: 0000",
    "general protection",
    "Kernel panic",
    "self-detected stall",
    "detected stalls",
];

/// The first complaint of the kernel itself, with the lines after, which include the stack.
fn complaint(console: &str) -> Option<String> {
    let complains = |line: &str| {
        message(line).is_some_and(|text| {
            // A message with other text before "WARNING:" only warns of a setting.
            text.starts_with("WARNING:") || COMPLAINTS.iter().any(|words| text.contains(words))
        })
    };
    let first = console.lines().position(complains)?;
    let lines: Vec<&str> = console.lines().skip(first).take(40).collect();
    Some(format!("the kernel complains:\n{}", lines.join("\n")))
}

/// The kernel's text in a line, if the line is the kernel's: `[   12.345678] text`. Other text may stand before.
fn message(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once('[')?;
    let (time, text) = rest.split_once("] ")?;
    time.trim_start().parse::<f64>().is_ok().then_some(text)
}

impl Guest {
    /// Boots the kernel, and waits until the machine has said all and is off. `counted`: with an emulated clock, too.
    pub(super) fn run(
        &self,
        kernel: &Unpacked,
        counted: bool,
        interrupt: &Interrupt,
    ) -> Result<Findings> {
        let directory = tempfile::tempdir()?;
        let initramfs = self.initramfs(kernel, directory.path())?;
        let console = directory.path().join("console");
        let machine = Machine(
            Command::new("qemu-system-x86_64")
                .args(["-M", "q35"])
                .args(if self.kvm { REAL } else { EMULATION })
                .args(&COUNTED[..if counted && !self.kvm { 2 } else { 0 }])
                // Without a feature that a nested KVM may not be able to set.
                .args(["-cpu", "max,arch-capabilities=off"])
                .args(["-smp", "2", "-m", "2048", "-nographic", "-no-reboot"])
                .args(["-net", "none", "-kernel"])
                .arg(&kernel.image)
                .arg("-initrd")
                .arg(&initramfs)
                .args(["-append", APPENDED])
                .args([
                    "-virtfs",
                    "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
                ])
                .stdin(Stdio::null())
                .stdout(File::create(&console)?)
                .stderr(Stdio::inherit())
                .spawn()
                .context("cannot start qemu")?,
        );
        machine.wait(self.limit, interrupt)?;
        let said = String::from_utf8_lossy(&fs::read(&console)?).into_owned();
        if self.console {
            println!("{said}");
        }
        ensure!(
            said.contains("@@ end"),
            "it did not come to its end; {}",
            complaint(&said).unwrap_or_else(|| format!("the last that it said: {}", tail(&said)))
        );
        Ok(Findings::of(&said))
    }

    /// The file system that the machine starts from.
    fn initramfs(&self, kernel: &Unpacked, directory: &Path) -> Result<PathBuf> {
        let root = directory.join("root");
        for name in ["bin", "modules", "proc", "sys", "dev", "host"] {
            fs::create_dir_all(root.join(name))?;
        }
        let busybox = which("busybox")?;
        fs::copy(&busybox, root.join("bin/busybox"))?;
        let mut load = String::new();
        for module in modules::wanted(&kernel.modules)? {
            let file = format!("modules/{}.ko", module.name);
            fs::write(root.join(&file), module.bytes)?;
            load += &format!("insmod /{file} || echo \"cannot load {}\"\n", module.name);
        }
        fs::write(root.join("load"), load)?;
        let quoted = |path: &Path| path.display().to_string();
        let script = SCRIPT
            .replace("@PACKETS@", &quoted(&self.tests.packets))
            .replace("@STACKED@", &quoted(&self.tests.stacked))
            .replace("@LOAD@", &quoted(&self.tests.load))
            .replace("@FILTER@", &self.filter)
            .replace("@SECONDS@", &self.load.to_string())
            .replace("@OUTLIVE@", &quoted(&self.outlive))
            .replace("@SERVER@", &quoted(&self.reference_server));
        fs::write(root.join("inside"), script)?;
        fs::write(root.join("init"), INIT)?;
        fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
        let archive = directory.join("initramfs");
        let status = Command::new("sh")
            .args(["-c", "find . | busybox cpio -o -H newc >\"$1\"", "sh"])
            .arg(&archive)
            .current_dir(&root)
            .stderr(Stdio::null())
            .status()?;
        ensure!(status.success(), "busybox cannot pack the initramfs");
        Ok(archive)
    }
}

fn which(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(program));
    found
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| format!("there is no {program}"))
}

/// The last lines of a text, joined to a single line.
fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join(" / ")
}

/// A running qemu; a drop ends qemu.
struct Machine(Child);

impl Machine {
    fn wait(mut self, limit: Duration, interrupt: &Interrupt) -> Result<()> {
        let deadline = Instant::now() + limit;
        while self.0.try_wait()?.is_none() {
            interrupt.check()?;
            if Instant::now() > deadline {
                // The output until then is of use.
                println!(
                    "  it takes more than {} s and is switched off",
                    limit.as_secs()
                );
                return Ok(());
            }
            thread::sleep(Duration::from_millis(100));
        }
        std::io::stdout().flush()?;
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only when qemu has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The machine's first process.
const INIT: &str = include_str!("init.sh");
/// The script that the first process runs among this machine's files.
const SCRIPT: &str = include_str!("inside.sh");

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Booting\r\n@@ loads yes\r\n[ 1.2] noise @@ tcx missing\r\n@@ clsact yes\r\n\
         @@ packets passed 103 failed 0\r\n@@ stacked passed 9 failed 0\r\n@@ load passed 2 failed 0\r\n\
         @@ work httpd: 3 kills\r\n@@ end\r\n";

    #[test]
    fn findings_are_read_from_console() {
        let findings = Findings::of(GOOD);
        assert!(findings.pass(true), "{findings:?}");
        assert_eq!(
            findings.cells(),
            "yes | not in this kernel | yes | 103 of 103 | 9 of 9 | 2 of 2"
        );
        assert_eq!(findings.work, ["httpd: 3 kills"]);
    }

    #[test]
    fn failure_is_reported_with_reason() {
        let findings = Findings::of(
            "@@ loads no\n@@ why no such helper\n@@ packets passed 2 failed 1\n@@ stacked passed 1 failed 1\n",
        );
        assert!(!findings.pass(true));
        assert_eq!(findings.reasons, ["no such helper"]);
        assert_eq!(
            findings.cells(),
            "**no** | **no** | **no** | 2 of 3 | 1 of 2 | 0 of 0"
        );
    }

    #[test]
    fn kernel_with_warnings_fails() {
        for line in [
            "[   23.455701] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI",
            "[    5.000000] WARNING: CPU: 1 PID: 7 at net/core/dev.c:1 f+0x1/0x2",
            "[    5.000000] BUG: kernel NULL pointer dereference, address: 0000000000000008",
            "[    5.000000] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        ] {
            let findings = Findings::of(&format!("{GOOD}{line}\r\n[ 5.0] RIP: here\r\n"));
            assert!(!findings.pass(true), "{line}");
            let [reason] = findings.reasons.as_slice() else {
                panic!("{findings:?}");
            };
            assert!(reason.contains(line.trim_end()) && reason.contains("RIP: here"));
        }
        for line in [
            "WARNING: a program's own words, [1] too",
            "[    0.100000] Spectre V2 : WARNING: a setting",
        ] {
            assert!(
                Findings::of(&format!("{GOOD}{line}\r\n")).pass(true),
                "{line}"
            );
        }
    }
}
