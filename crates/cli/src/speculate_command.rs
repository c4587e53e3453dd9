//! `outlive speculate`.

use std::{
    env,
    ffi::OsStr,
    fs, io,
    io::Read as _,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{self, Stdio},
    thread,
    time::{Duration, Instant},
};

use ::make::{
    command::Status,
    daemon::{Create, Daemon, Listed, ListedState, Reply, Request},
    environment::Environment,
    input, link, preflight, runner,
};
use rustix::process::getuid;

use crate::{
    arguments::{Speculate, SpeculateRun},
    commands::{json, line},
    exit::Outcome,
    make_command,
};

/// Prefix of the names of sockets.
const KIND: &str = "outlive-speculate";
/// Time for the daemon to start, and interval between two looks.
const DAEMON_START_TIMEOUT: Duration = Duration::from_secs(30);
const DAEMON_POLL_INTERVAL: Duration = Duration::from_millis(10);

impl Speculate {
    /// The given directory.
    fn tree(&self) -> Option<&PathBuf> {
        let tree = match self {
            Self::Run(run) => &run.tree,
            Self::Commit(which) | Self::Abort(which) => &which.tree,
            Self::List(list) => &list.tree,
            Self::Keep(tree) => tree,
        };
        tree.tree.as_ref()
    }
}

pub(crate) fn speculate(arguments: Speculate) -> Outcome {
    let tree = arguments.tree().cloned().map_or_else(env::current_dir, Ok);
    let is_created = matches!(arguments, Speculate::Run(_) | Speculate::Keep(_));
    let there = tree.and_then(|tree| match tree.canonicalize() {
        // A directory that was removed still has speculations, which can be listed and aborted.
        Err(_) if !is_created => removed(&tree),
        there => there
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", tree.display()))),
    });
    let tree = match there {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("outlive: there is no such directory: {error}");
            return Outcome::Usage;
        }
    };
    let socket = runner::socket_of(KIND, &tree, getuid().as_raw());
    let outcome = match arguments {
        Speculate::Keep(_) => return keep(&tree, &socket),
        Speculate::List(list) => show(&socket, list.json),
        Speculate::Commit(which) => commit(&socket, &which.name),
        Speculate::Abort(which) => abort(&socket, &which.name),
        Speculate::Run(run) => create(&tree, &socket, run),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("outlive: {error}");
        Outcome::Failed
    })
}

/// The path of a removed directory, in the nearest directory that exists.
fn removed(directory: &Path) -> io::Result<PathBuf> {
    let whole = std::path::absolute(directory)?;
    let (parent, name) = whole
        .parent()
        .zip(whole.file_name())
        .ok_or(io::ErrorKind::NotFound)?;
    match parent.canonicalize() {
        Ok(parent) => Ok(parent.join(name)),
        Err(_) => Ok(removed(parent)?.join(name)),
    }
}

/// The reason why a name is not allowed: in a list, such names could not be told apart.
fn misnamed(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("a name has at least one character");
    }
    name.chars()
        .any(char::is_control)
        .then_some("a name has no line ends, and no other control characters")
}

fn create(tree: &Path, socket: &str, arguments: SpeculateRun) -> io::Result<Outcome> {
    let Some((program, _)) = arguments.command.split_first() else {
        return Ok(Outcome::Usage); // the parser wants a command
    };
    let path = match program_at(program) {
        Ok(path) => path,
        Err(error) => {
            eprintln!("outlive: cannot run {}: {error}", program.display());
            return Ok(Outcome::Usage);
        }
    };
    let of_program = || {
        let name = Path::new(program).file_name().unwrap_or(program);
        name.to_string_lossy().into_owned()
    };
    let name = arguments.name.unwrap_or_else(of_program);
    if let Some(why) = misnamed(&name) {
        eprintln!("outlive: {name:?} cannot be the name of a speculation: {why}");
        return Ok(Outcome::Usage);
    }
    let request = Request::Create(Box::new(Create {
        name: name.clone(),
        command: runner::command(path.into(), arguments.command)?,
        inputs: arguments.input,
        timeout: arguments
            .timeout
            .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
    }));
    // A daemon without speculations ends, perhaps at this moment. The daemon accepts connections until its end, and
    // closes each: on a busy machine that takes longer than a few attempts.
    let until = Instant::now() + DAEMON_START_TIMEOUT;
    let reply = loop {
        match link::ask(socket, &request) {
            Ok(reply) => break reply,
            Err(error) if link::is_disconnected(&error) && Instant::now() < until => {
                if let Err(missing) = preflight::look() {
                    eprintln!("outlive: {missing}");
                    return Ok(Outcome::Unsupported);
                }
                if let Some(why) = make_command::unfit(tree) {
                    eprintln!("outlive: {why}");
                    return Ok(Outcome::Usage);
                }
                begin_keeping(tree, socket)?;
                thread::sleep(DAEMON_POLL_INTERVAL);
            }
            Err(error) => return Err(error),
        }
    };
    Ok(match reply {
        Reply::Created => {
            line(&name);
            Outcome::Done
        }
        other => refused(other),
    })
}

fn commit(socket: &str, name: &str) -> io::Result<Outcome> {
    let request = Request::Commit(name.to_owned());
    let mut sent = link::SignalRelay::default();
    match check_reply(link::ask_with_signals(socket, &request, &mut sent))? {
        Reply::Committed(effects, status) => {
            let effects = match effects {
                1 => "1 effect is".to_owned(),
                many => format!("{many} effects are"),
            };
            eprintln!("outlive: {effects} visible now");
            runner::end_as(status)
        }
        other => Ok(refused(other)),
    }
}

fn abort(socket: &str, name: &str) -> io::Result<Outcome> {
    match check_reply(link::ask(socket, &Request::Abort(name.to_owned())))? {
        Reply::Aborted(names) => {
            line(&names.join("\n"));
            Ok(Outcome::Done)
        }
        other => Ok(refused(other)),
    }
}

fn show(socket: &str, as_json: bool) -> io::Result<Outcome> {
    // Without a daemon there are no speculations.
    let all = match link::ask(socket, &Request::List) {
        Ok(Reply::Listed(all)) => all,
        Ok(other) => return Ok(refused(other)),
        Err(error) if link::is_disconnected(&error) => Vec::new(),
        Err(error) => return Err(error),
    };
    if as_json {
        json(&all);
        return Ok(Outcome::Done);
    }
    for one in all {
        line(&format!(
            "{}: {}, {}: {}",
            one.name,
            state(&one),
            match one.effects {
                1 => "1 effect".to_owned(),
                many => format!("{many} effects"),
            },
            one.arguments.join(" ")
        ));
        for waits in &one.waiting {
            let (process, program) = (waits.process, &waits.program);
            line(&format!(
                "  process {process} ({program}) waits for the commit: {waits}"
            ));
        }
    }
    Ok(Outcome::Done)
}

fn state(of: &Listed) -> String {
    match &of.state {
        ListedState::Waits => format!("waits for {}", of.inputs.join(", ")),
        ListedState::Runs => "runs".to_owned(),
        ListedState::Ended(Status::Exited(0)) => "finished".to_owned(),
        ListedState::Ended(Status::Exited(status)) => format!("ended with status {status}"),
        ListedState::Ended(Status::Signalled(signal)) => format!("ended by signal {signal}"),
        ListedState::Failed(why) => format!("was not begun ({why})"),
    }
}

fn check_reply(reply: io::Result<Reply>) -> io::Result<Reply> {
    reply.map_err(|error| match link::is_disconnected(&error) {
        // The daemon may have just ended: then no speculation is left.
        true => io::Error::other(
            "this tree has no speculation: `outlive speculate run -- COMMAND` begins a speculation",
        ),
        false => error,
    })
}

fn refused(reply: Reply) -> Outcome {
    if let Reply::Refused(why) = reply {
        eprintln!("outlive: {why}");
    }
    Outcome::Failed
}

/// The file of a program, as a shell would find it.
pub(crate) fn program_at(name: &OsStr) -> io::Result<PathBuf> {
    let is_program = |path: &PathBuf| {
        let metadata = fs::metadata(path);
        metadata.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match is_program(&path) {
            true => Ok(path),
            false => Err(io::Error::other("it is no program")),
        };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(is_program)
        .ok_or_else(|| io::Error::other("no directory of PATH has it"))
}

/// Starts the daemon, and waits until the daemon answers. Errors of the start are returned.
fn begin_keeping(tree: &Path, socket: &str) -> io::Result<()> {
    let mut keep = process::Command::new(env::current_exe()?);
    keep.args(["speculate", "keep", "--tree"]).arg(tree);
    keep.stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // The daemon is no job of the shell: `^C` must not reach the daemon.
    keep.process_group(0);
    let until = Instant::now() + DAEMON_START_TIMEOUT;
    let mut keeper = keep.spawn()?;
    while link::connect(socket).is_err() {
        let is_late = Instant::now() > until;
        let ended = keeper.try_wait()?;
        if is_late || ended.is_some_and(|status| !status.success()) {
            let _ = keeper.kill();
            let mut said = String::new();
            if let Some(mut errors) = keeper.stderr.take() {
                let _ = errors.read_to_string(&mut said);
            }
            let said = said.trim_start_matches("outlive: ").trim_end();
            return Err(io::Error::other(said.to_owned()));
        }
        if ended.is_some() {
            keeper = keep.spawn()?; // another daemon was there, and has ended by now
        }
        thread::sleep(DAEMON_POLL_INTERVAL);
    }
    Ok(())
}

/// Runs the daemon in this process. After the first answer the output of the daemon has no reader.
fn keep(tree: &Path, socket: &str) -> Outcome {
    input::leave_terminal();
    runner::close_inherited_in_children();
    let listener = match link::listen(socket) {
        Ok(listener) => listener,
        // Another daemon was faster.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Outcome::Done,
        Err(error) => {
            eprintln!("outlive: cannot listen: {error}");
            return Outcome::Failed;
        }
    };
    supervise::limits::raise();
    let environment = Environment::own();
    let daemon = match Daemon::new(&make_command::concealed(tree, &environment)) {
        Ok(daemon) => daemon,
        Err(error) => {
            eprintln!("outlive: {error}");
            return Outcome::Unsupported;
        }
    };
    let stop = match make_command::stop_signals() {
        Ok(stop) => stop,
        Err(error) => {
            eprintln!("outlive: {error}");
            return Outcome::Internal;
        }
    };
    match daemon.run(listener, &stop) {
        Ok(()) => Outcome::Done,
        Err(error) => {
            tracing::error!("{error}");
            Outcome::Failed
        }
    }
}
