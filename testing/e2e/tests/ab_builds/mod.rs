//! The same project, built by `outlive make` and by `make`.

#![allow(dead_code, reason = "no test needs all of it")]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(crate) use e2e::EVENT_TIMEOUT;
use serde_json::Value;
use tempfile::TempDir;

/// An unrequested command runs only when no other process wants the processor: beside a build, two seconds of work
/// take minutes.
const IDLE_WORK_TIMEOUT: Duration = EVENT_TIMEOUT.saturating_mul(4);

/// The beginning of a makefile whose commands die of a signal after make.
///
/// GNU make 4.3 is confused when a command dies of a signal before make itself has come to handle the same signal, as
/// on a busy machine: the handler waits for a child that make has waited for just before. Then make says "wait: No
/// child processes" and exits with status 2. The first act of the handler is to remove itself, which `/proc` tells: a
/// command that begins with `$(after_make)` dies of SIGINT or SIGTERM when make has no handler for the signal any
/// more. (The bits of the two signals in `SigCgt` are 1 and 14.)
pub(crate) const AFTER_MAKE: &str = "\
    status := /proc/$(firstword $(file </proc/self/stat))/status\n\
    dies = trap 'while grep -q \"^SigCgt:.*$2$$\" $(status); do sleep 0.01; done; trap - $1; kill -$1 $$$$' $1;\n\
    after_make = $(call dies,INT,[2367abef]) $(call dies,TERM,[4567cdef]...)\n";

pub(crate) fn outlive() -> Command {
    let outlive = std::env::var_os("OUTLIVE_BIN").expect("OUTLIVE_BIN says where outlive is");
    without_make_variables(Command::new(outlive))
}

fn outlive_make() -> String {
    format!("{} make", outlive().get_program().display())
}

/// A shell in which `$M` is that.
fn shell(make: &str, script: &str) -> Command {
    let mut shell = without_make_variables(Command::new("bash"));
    let script = format!("M='{make}'; {script}; exit $?");
    shell.args(["-c", &script]);
    shell
}

pub(crate) fn make() -> Command {
    without_make_variables(Command::new("make"))
}

/// An environment as from a shell: a make may run these tests, and the makes of the tests would take that make for
/// their parent.
pub(crate) fn without_make_variables(mut command: Command) -> Command {
    for name in [
        "MAKEFLAGS",
        "MFLAGS",
        "MAKELEVEL",
        "MAKE_TERMOUT",
        "MAKE_TERMERR",
        // Cargo's variable for the test itself: programs would look for libraries in a directory that cargo writes
        // meanwhile.
        "LD_LIBRARY_PATH",
    ] {
        command.env_remove(name);
    }
    command
}

/// The same project, built by `outlive make` and by `make`.
pub(crate) struct AbBuilds {
    pub(crate) directory: TempDir,
    pub(crate) ours: PathBuf,
    pub(crate) theirs: PathBuf,
    pub(crate) watcher: Option<Child>,
}

impl AbBuilds {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        e2e::handle_signals();
        // Not in `/tmp`, which would be concealed as a whole.
        Self::new_in("/var/lib", files)
    }

    pub(crate) fn new_in(place: &str, files: &[(&str, &str)]) -> Self {
        let directory = TempDir::new_in(place).expect("a directory");
        let place = |name: &str| {
            let path = directory.path().join(name);
            fs::create_dir(&path).expect("a directory");
            path
        };
        let (ours, theirs) = (place("ours"), place("their"));
        let this = Self {
            directory,
            ours,
            theirs,
            watcher: None,
        };
        for (name, text) in files {
            this.save(name, text);
        }
        this
    }

    pub(crate) fn save(&self, name: &str, text: &str) {
        self.later();
        for tree in [&self.ours, &self.theirs] {
            let path = tree.join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            // Whole, or not at all.
            let new = self.directory.path().join("new");
            fs::write(&new, text).expect("a file");
            fs::rename(new, path).expect("its place");
        }
    }

    /// Waits until new files are younger than all earlier files. The clock of files has steps of up to 10 ms, and
    /// make has no work for a source as old as the target.
    fn later(&self) {
        let probe = self.directory.path().join("probe");
        let date = || {
            fs::write(&probe, "").expect("a file");
            let of = fs::metadata(&probe).expect("the file");
            of.modified().expect("its date")
        };
        let began = date();
        wait_until("the clock of files goes on", || date() > began);
    }

    pub(crate) fn watch(&mut self, arguments: &[&str]) {
        let mut watch = outlive();
        watch.args(["make", "--watch"]).args(arguments);
        self.spawn_watcher(watch);
    }

    /// For makes of [`Self::shell`], which have another environment.
    pub(crate) fn watch_for_shell(&mut self, arguments: &str) {
        self.watch_in_shell(&format!("$M --watch {arguments}"));
    }

    pub(crate) fn watch_in_shell(&mut self, script: &str) {
        self.spawn_watcher(shell(&outlive_make(), script));
    }

    pub(crate) fn spawn_watcher(&mut self, mut watch: Command) {
        // With the same kinds of streams as makes here: no terminal, and no two equal streams.
        watch.current_dir(&self.ours).stdin(Stdio::null());
        let log = fs::File::create(self.log()).expect("a file");
        watch.stdout(Stdio::null()).stderr(log);
        self.watcher = Some(watch.spawn().expect("outlive make --watch"));
        wait_until("it watches", || self.status().is_some());
    }

    /// The log of the watcher.
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    pub(crate) fn status(&self) -> Option<Value> {
        let mut status = outlive();
        status
            .args(["make", "--status", "--json"])
            .current_dir(&self.ours);
        let output = status.output().expect("outlive make --status");
        serde_json::from_slice(&output.stdout).ok()
    }

    pub(crate) fn number(&self, what: &str) -> u64 {
        let status = self.status();
        status.and_then(|status| status[what].as_u64()).unwrap_or(0)
    }

    /// Waits until the engine has noticed every earlier change of the tree: saved files, and files that a make has
    /// revealed.
    ///
    /// The kernel reports changes in order: the engine notices the test's own change after all earlier changes. This
    /// change sets the mode of the tree to the same mode, and makes no file stale. A single change is not enough: the
    /// make that is counted then may have begun before the last earlier change.
    pub(crate) fn await_notice(&self) {
        for _ in 0..2 {
            let begun = self.number("begun");
            let mode = fs::metadata(&self.ours).expect("a directory").permissions();
            fs::set_permissions(&self.ours, mode).expect("the tree is ours");
            wait_until("a change is noticed", || self.number("begun") > begun);
        }
    }

    /// Waits until all anticipated work is done. Unasked commands get the idle time of a busy machine: the wait fails
    /// only when no such command has ended for long.
    pub(crate) fn await_speculation(&self) {
        self.await_notice();
        let (mut before, mut since) = ((0, 0), Instant::now());
        loop {
            let status = self.status().unwrap_or_default();
            let number = |what: &str| status[what].as_u64().unwrap_or(0);
            let now = (number("running"), number("finished"));
            if now.0 == 0 && now.1 > 0 {
                return;
            }
            if now != before {
                (before, since) = (now, Instant::now());
            }
            assert!(
                since.elapsed() < IDLE_WORK_TIMEOUT,
                "it is not done: {status}"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a command waits for the request.
    pub(crate) fn await_waiting_command(&self) {
        self.await_notice();
        wait_until("it waits", || {
            let status = self.status();
            let waiting = status.as_ref().and_then(|it| it["waiting"].as_array());
            waiting.is_some_and(|waiting| !waiting.is_empty())
        });
    }

    /// Starts `outlive make`; the output is not read yet.
    pub(crate) fn begin(&self) -> Child {
        let mut make = outlive();
        make.arg("make").current_dir(&self.ours);
        make.stdin(Stdio::null());
        let make = make.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        make.expect("outlive make")
    }

    /// Runs both makes of a project in which a command waits for the file `go`, and compares the results. The test
    /// saves `go` when `shown` is visible in the tree. Returns the messages of `outlive make`.
    pub(crate) fn make_waiting_command(&self, shown: &str) -> String {
        let ours = self.begin();
        wait_until("it is shown", || self.ours.join(shown).exists());
        self.save("go", "");
        let ours = ours.wait_with_output().expect("outlive make");
        let theirs = make().current_dir(&self.theirs).output();
        self.same(&ours, &theirs.expect("make"), &[])
    }

    /// Runs both makes, and asserts equal results. Returns the messages of `outlive make`.
    pub(crate) fn make(&self, arguments: &[&str]) -> String {
        let ours = outlive()
            .arg("make")
            .args(arguments)
            .current_dir(&self.ours)
            .output();
        let theirs = make().args(arguments).current_dir(&self.theirs).output();
        let (ours, theirs) = (ours.expect("outlive make"), theirs.expect("make"));
        self.same(&ours, &theirs, arguments)
    }

    /// Runs the same script with both makes, as `$M`, and asserts equal results. Returns the messages of
    /// `outlive make`.
    pub(crate) fn shell(&self, script: &str) -> String {
        let run = |make: &str, tree: &Path| {
            let mut shell = shell(make, script);
            shell.current_dir(tree).output().expect("bash")
        };
        let (ours, theirs) = (run(&outlive_make(), &self.ours), run("make", &self.theirs));
        self.same(&ours, &theirs, &[])
    }

    pub(crate) fn same(&self, ours: &Output, theirs: &Output, arguments: &[&str]) -> String {
        let said = self.compare(ours, theirs);
        assert_eq!(tree_contents(&self.ours), tree_contents(&self.theirs));
        let is_done = |tree| {
            let mut make = make();
            make.arg("-q").args(arguments).current_dir(tree);
            make.output().expect("make").status.code()
        };
        assert_eq!(is_done(&self.ours), is_done(&self.theirs));
        said
    }

    pub(crate) fn compare(&self, ours: &Output, theirs: &Output) -> String {
        let lines = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let lines = text.split_inclusive('\n');
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let all = [&ours.stdout, &ours.stderr].map(|said| lines(said));
        let is_own = |line: &String| line.starts_with("outlive: ");
        let [out, errors] = all.map(|lines| lines.into_iter().partition::<Vec<_>, _>(is_own));
        assert_eq!(out.1, lines(&theirs.stdout), "{ours:?}");
        assert_eq!(errors.1, lines(&theirs.stderr), "{ours:?}");
        assert_eq!(ours.status, theirs.status, "{ours:?}");
        [out.0, errors.0].concat().concat()
    }
}

impl Drop for AbBuilds {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.log()).unwrap_or_default());
        }
        if let Some(mut watcher) = self.watcher.take() {
            let mut stop = outlive();
            let _ = stop
                .args(["make", "--stop"])
                .current_dir(&self.ours)
                .status();
            let began = Instant::now();
            while !thread::panicking() && watcher.try_wait().is_ok_and(|ended| ended.is_none()) {
                assert!(began.elapsed() < EVENT_TIMEOUT, "the watcher does not end");
                thread::sleep(Duration::from_millis(10));
            }
            let _ = watcher.kill();
            let _ = watcher.wait();
        }
    }
}

pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < EVENT_TIMEOUT, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Names, modes and contents.
pub(crate) fn tree_contents(tree: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut directories = vec![tree.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let metadata = fs::symlink_metadata(&path).expect("it is there");
            let content = match metadata.file_type() {
                kind if kind.is_file() => fs::read(&path).expect("a file"),
                kind if kind.is_symlink() => {
                    let target = fs::read_link(&path).expect("a link");
                    target.into_os_string().into_encoded_bytes()
                }
                _ => Vec::new(),
            };
            if metadata.is_dir() {
                directories.push(path.clone());
            }
            let name = path.strip_prefix(tree).expect("it is in it").to_owned();
            all.insert(name, (metadata.permissions().mode(), content));
        }
    }
    all
}
