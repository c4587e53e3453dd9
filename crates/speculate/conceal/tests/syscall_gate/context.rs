//! Start and end of concealed scripts.

use std::{
    io::Read as _,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use conceal::{
    concealment::Concealment, members::Members, syscall_gate::SyscallGate, world::World,
};
use tempfile::TempDir;

/// How long something may take that has to happen.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which a forbidden event must not happen.
pub(crate) const QUIET_TIME: Duration = Duration::from_millis(300);

pub(crate) struct Context {
    pub(crate) directory: TempDir,
    pub(crate) world: World,
    /// A name that scripts may speak to. No other run of this test has the same name.
    pub(crate) known: String,
    /// The surroundings may be changed.
    pub(crate) may_change: Arc<AtomicBool>,
}

impl Context {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new_in("/var/lib").expect("a directory");
        let concealed = [directory.path().to_owned(), "/tmp".into()];
        let random = directory.path().file_name().expect("a name");
        let known = format!("outlive-test-{}", random.display());
        let may_change = Arc::new(AtomicBool::new(false));
        let gate = Arc::clone(&may_change);
        let gate = Arc::new(move |_| gate.load(Ordering::Acquire));
        let world = World::new(&concealed, gate, &[known.clone().into_bytes()], &[]);
        Self {
            directory,
            world: world.expect("root and /dev/fuse"),
            known,
            may_change,
        }
    }

    /// Checks that the effect of the script waits as long as the script is not committed, and never happens.
    pub(crate) fn is_held(&self, script: &str, why: &str) {
        let mut begun = self.begin(&format!("import os\n{script}\nprint('leaked')"));
        begun.waits(why);
        begun.child.kill().expect("it waits");
        assert!(!begun.child.wait().expect("it ends").success());
    }

    /// Checks that the script does not wait.
    pub(crate) fn is_not_held(&self, script: &str) {
        let begun = self.begin(&format!("import os\n{script}"));
        begun.ends_by_itself();
    }

    /// Begins a script of Python's, which does not come after all other processes here: busy processors give next to
    /// no time to a script that comes last.
    pub(crate) fn begin(&self, script: &str) -> Begun {
        let begun = self.world.begin(self.world.encapsulation());
        let (concealment, view) = begun.expect("a view");
        let mut command = Command::new("python3");
        command.args(["-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let (child, outside) = view
            .spawn(&mut command, self.directory.path())
            .expect("python3");
        let members = view.members();
        members.hurry();
        Begun {
            child,
            outside,
            members,
            concealment,
        }
    }
}

/// A process that no script has begun. The process lives until the test kills the process: reaching an ended process is
/// a harmless error, and does not wait.
pub(crate) fn other() -> Child {
    let mut reads = Command::new("cat");
    reads.stdin(Stdio::piped()).stdout(Stdio::null());
    reads.spawn().expect("cat")
}

pub(crate) struct Begun {
    pub(crate) child: Child,
    pub(crate) outside: SyscallGate,
    pub(crate) members: Members,
    concealment: Concealment,
}

impl Begun {
    /// Waits until the script waits for this reason.
    pub(crate) fn waits(&mut self, why: &str) {
        let began = Instant::now();
        while !self.outside.waiting().iter().any(|it| it.1 == why) {
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "it ended, and did not wait: {why}");
            assert!(
                began.elapsed() < STEP_TIMEOUT,
                "it does not wait: {:?}",
                self.outside
            );
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(QUIET_TIME);
        assert_eq!(self.outside.waiting().len(), 1);
    }

    /// Commits the script, waits for the end, and returns the output.
    pub(crate) fn goes_on(mut self, context: &Context) -> String {
        self.concealment
            .commit(&**context.world.real())
            .expect("nothing has changed");
        context.may_change.store(true, Ordering::Release);
        self.outside.release();
        self.ends()
    }

    /// Waits for the end of a script that no commit lets through. Returns the output.
    pub(crate) fn ends_by_itself(mut self) -> String {
        let began = Instant::now();
        while self.child.try_wait().expect("a child").is_none() {
            assert!(began.elapsed() < STEP_TIMEOUT, "{:?}", self.outside);
            thread::sleep(Duration::from_millis(5));
        }
        self.ends()
    }

    fn ends(&mut self) -> String {
        let mut said = String::new();
        let out = self.child.stdout.as_mut().expect("a pipe");
        out.read_to_string(&mut said).expect("text");
        assert!(self.child.wait().expect("it ends").success(), "{said}");
        said
    }
}
