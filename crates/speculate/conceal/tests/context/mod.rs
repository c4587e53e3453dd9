//! Where programs run concealed.

// Each test uses only some parts.
#![allow(dead_code)]

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use conceal::{
    concealment::{CommitError, Concealment},
    syscall_gate::SyscallGate,
    world::World,
};
use encapsulation::{Base as _, Content, Encapsulation, Listing, Seen, TreePath};
use tempfile::TempDir;

/// How long something may take that has to happen.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct Context {
    pub(crate) directory: TempDir,
    pub(crate) world: World,
    pub(crate) may_change: Arc<AtomicBool>,
}

impl Context {
    pub(crate) fn new() -> Self {
        Self::asking(|may_change| may_change)
    }

    /// A context in which `answer` decides about changes of the surroundings. The argument of `answer` is the
    /// permission at the time of the question.
    pub(crate) fn asking(answer: impl Fn(bool) -> bool + Send + Sync + 'static) -> Self {
        // Not in `/tmp`, which is concealed as well.
        let directory = TempDir::new_in("/var/lib").expect("a directory");
        let tree = directory.path().join("tree");
        fs::create_dir(&tree).expect("a directory");
        let may_change = Arc::new(AtomicBool::new(false));
        let gate = Arc::clone(&may_change);
        let world = World::new(
            &[tree, "/tmp".into()],
            Arc::new(move |_| answer(gate.load(Ordering::Acquire))),
            &[],
            &[],
        );
        Self {
            directory,
            world: world.expect("root and /dev/fuse"),
            may_change,
        }
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.directory.path().join("tree")
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.tree().join(name), text).expect("a file");
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.tree()).expect("the tree");
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let mut names: Vec<_> = names.map(|entry| name(entry.expect("an entry"))).collect();
        names.sort();
        names
    }

    /// Begins a script, concealed.
    pub(crate) fn begin(&self, script: &str) -> (Concealment, std::process::Child, SyscallGate) {
        self.begin_in(self.world.encapsulation(), script)
    }

    fn begin_in(
        &self,
        it: Encapsulation,
        script: &str,
    ) -> (Concealment, std::process::Child, SyscallGate) {
        let (concealment, view) = self.world.begin(it).expect("a view");
        let mut command = Command::new("sh");
        command.args(["-ec", script]).stdin(Stdio::null());
        let (child, outside) = view.spawn(&mut command, &self.tree()).expect("sh");
        // Without this call, the script would run only when the machine is idle.
        view.members().hurry();
        (concealment, child, outside)
    }

    pub(crate) fn run(&self, script: &str) -> Concealment {
        self.run_in(self.world.encapsulation(), script)
    }

    /// Runs a script above another encapsulation.
    pub(crate) fn run_in(&self, it: Encapsulation, script: &str) -> Concealment {
        let (concealment, mut child, _) = self.begin_in(it, script);
        assert!(child.wait().expect("it ends").success(), "{script}");
        concealment
    }

    pub(crate) fn commit(&self, concealment: &Concealment) -> Result<usize, CommitError> {
        concealment.commit(&**self.world.real())
    }
}

/// Whether the tree has that name for concealed processes.
pub(crate) fn has_made(it: &Concealment, name: &str) -> bool {
    let path = TreePath::new(format!("0/{name}")).expect("a path");
    let seen = it.with_encapsulation(|it| it.peek().look(&path));
    matches!(seen, Some(Ok(Seen::There(_))))
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < STEP_TIMEOUT, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A base in which all inputs are unchanged.
pub(crate) struct AsItWas(pub(crate) encapsulation::Inputs);

impl encapsulation::Base for AsItWas {
    fn look(&self, path: &TreePath) -> Result<Seen, rustix::io::Errno> {
        let mut names = self.0.names();
        let then = names.find(|(name, _)| *name == path);
        Ok(then.map_or(Seen::Absent, |(_, seen)| *seen))
    }

    fn list(&self, _: &TreePath) -> Result<Listing, rustix::io::Errno> {
        Err(rustix::io::Errno::NOENT)
    }

    fn content(&self, path: &TreePath) -> Result<Content, rustix::io::Errno> {
        Ok(Content::Base(path.clone()))
    }
}
