//! What a make begins in the place of a command: it asks for the command to be done, and is the command where that cannot
//! be.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    path::PathBuf,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{fstat, stat},
    io::{FdFlags, fcntl_setfd},
    process::{DumpableBehavior, Signal, getpid, kill_process, set_dumpable_behavior, umask},
    stdio::{stderr, stdin, stdout},
    termios::{isatty, tcgetwinsize},
};
use signal_hook::low_level::emulate_default_handler;

use crate::{
    command::{Command, Status},
    environment::{Environment, become_it as become_program},
    jobserver,
    link::{self, Gain, Reply, Request, Sent},
};

/// A command with what this process would give it.
///
/// # Errors
/// If there is no current directory.
pub fn command(program: OsString, arguments: Vec<OsString>) -> io::Result<Command> {
    // The mask can be read by setting it only.
    let mask = umask(rustix::fs::Mode::empty());
    umask(mask);
    let environment = Environment::own();
    let flags = environment.get(jobserver::TOLD_IN[0]);
    let jobserver = jobserver::told(flags);
    let mut others = others();
    others.retain(|number| !jobserver::is_of(*number, jobserver, flags));
    Ok(Command {
        program,
        arguments,
        environment,
        directory: std::env::current_dir()?,
        umask: mask.bits(),
        terminal: [isatty(stdin()), isatty(stdout()), isatty(stderr())],
        is_joined: is_joined(),
        size: size(),
        reads_nothing: reads_nothing(),
        jobserver,
        others,
    })
}

/// Descriptors that a shell can name, beyond the streams.
const NAMED: std::ops::Range<i32> = 3..10;

/// Those of them that who is begun by this process has.
fn others() -> Vec<i32> {
    NAMED
        .filter(|number| jobserver::is_given(*number))
        .collect()
}

/// Who is begun by this process has none of them: what is written there would be seen.
pub fn keep_others() {
    for number in others() {
        // SAFETY: it stays open, and is what it is.
        let _ = fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC);
    }
}

/// Whether output and errors go to the same place, which is no terminal: what is said there has one order.
fn is_joined() -> bool {
    let place = |stream| {
        let file = fstat(stream).ok()?;
        Some((file.st_dev, file.st_ino))
    };
    !isatty(stdout()) && place(stdout()).is_some_and(|out| place(stderr()) == Some(out))
}

/// Of the terminal, if there is one.
fn size() -> Option<(u16, u16)> {
    let of = |stream| tcgetwinsize(stream).ok();
    let size = of(stdout())
        .or_else(|| of(stderr()))
        .or_else(|| of(stdin()))?;
    Some((size.ws_row, size.ws_col))
}

/// Whether standard input is a pipe that is empty and nobody writes to: make gives that to all but one of those that it has do
/// something at the same time.
fn nobody_writes() -> bool {
    let stream = stdin();
    let polled = &mut [PollFd::new(&stream, PollFlags::IN)];
    let is_ready = poll(polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
    is_ready && polled[0].revents() == PollFlags::HUP
}

/// Whether standard input is the null device, or not open.
fn reads_nothing() -> bool {
    let null = || {
        Some((
            stat("/dev/null").ok()?.st_rdev,
            fstat(stdin()).ok()?.st_rdev,
        ))
    };
    null().is_none_or(|(null, its)| null == its)
}

/// Has the command done by the engine there, or is it. What was gained, if it was done.
///
/// # Errors
/// If the command cannot be run.
pub fn run(
    socket: &str,
    command: Command,
    request: fn(Command) -> Request,
) -> io::Result<(Status, Gain)> {
    let mut concealed = command.clone();
    jobserver::without_name(&mut concealed);
    let asked = request(concealed);
    let mut sent = Sent::default();
    let reply = link::ask_and_stay(socket, &asked, &mut sent);
    if let Ok(Reply::Done(status, gain)) = reply {
        return Ok((status, gain));
    }
    // The command would have died of it, had it been begun at once.
    if let Some(signal) = sent.leave() {
        end_as(Status::Signalled(signal));
    }
    match reply {
        Ok(Reply::Plainly(plainly)) => {
            if let Some(why) = plainly.why {
                eprintln!("outlive: {why}");
            }
            if let Some(process) = plainly.beside {
                leave_mounts(process, &command);
            }
            return Err(become_it(&command, &plainly.also));
        }
        // Its make has no other words than make's.
        Err(error) if !matches!(asked, Request::Run(_)) => {
            let why = link::why(&error);
            eprintln!("outlive: who watches does not answer ({why}): this is plain make");
        }
        _ => {}
    }
    Err(become_it(&command, &[]))
}

/// Has from now on the mounts of that process, where files are as they are: a command that is asked for need not go through what conceals. It
/// stays where it is if it may not leave that, or its directory is not there.
fn leave_mounts(process: u32, command: &Command) {
    let root = PathBuf::from(format!("/proc/{process}/root"));
    let within = command.directory.strip_prefix("/");
    let is_there = within.is_ok_and(|within| root.join(within).is_dir());
    let mounts = File::open(format!("/proc/{process}/ns/mnt"));
    let (true, Ok(mounts)) = (is_there, mounts) else {
        return;
    };
    // SAFETY: this process has one thread, and becomes the command; the descriptor is open.
    let entered = unsafe { libc::setns(mounts.as_raw_fd(), libc::CLONE_NEWNS) };
    if entered == 0 && std::env::set_current_dir(&command.directory).is_err() {
        // It was there just now: whoever has removed it has done so for make, too.
        eprintln!("outlive: {} is gone", command.directory.display());
    }
}

/// As make would have begun it: how it has ended.
#[must_use]
pub fn for_make(socket: &str, program: OsString, arguments: Vec<OsString>) -> Status {
    let name = arguments.first().unwrap_or(&program).clone();
    let done = match command(program.clone(), arguments.clone()) {
        Ok(mut command) => {
            command.reads_nothing |= nobody_writes();
            run(socket, command, Request::Run)
        }
        // It has removed its directory, perhaps, and programs may be begun there all the same.
        Err(_) => Err(exec(&program, &arguments, &Environment::own())),
    };
    match done {
        Ok((status, _)) => status,
        Err(error) => {
            // As make says it where it cannot begin a command itself: what interprets it is not there, perhaps.
            let why = error.to_string();
            let why = why.split(" (os error").next().unwrap_or_default();
            eprintln!("{}: {}: {why}", make_itself(), name.display());
            Status::Exited(127)
        }
    }
}

/// What the make says that it is: one that another one has begun, how many are above it.
fn make_itself() -> String {
    let level = std::env::var("MAKELEVEL").ok();
    // For its commands it is one more.
    match level.and_then(|level| level.parse().ok()) {
        Some(above @ 2u32..) => format!("make[{}]", above - 1),
        _ => "make".into(),
    }
}

/// Is the command from now on, with that in its environment, too. Returns if it cannot be.
#[must_use]
pub fn become_it(command: &Command, also: &[(String, String)]) -> io::Error {
    let mut environment = command.environment.clone();
    for (name, value) in also {
        environment.set(name, value);
    }
    exec(&command.program, &command.arguments, &environment)
}

fn exec(program: &OsStr, arguments: &[OsString], environment: &Environment) -> io::Error {
    // As make would have begun it: programs in Rust ignore it, and this may be one.
    // SAFETY: what the system does of itself needs nothing of this process.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    become_program(program, arguments, environment)
}

/// Ends as the command has ended, and at once: what a process has to do at its end is make's where this is a copy of it.
pub fn end_as(status: Status) -> ! {
    // SAFETY: nothing that is said here waits to be written.
    let exit = |code| unsafe { libc::_exit(code) };
    match status {
        Status::Exited(code) => exit(code),
        Status::Signalled(signal) => {
            // A core would be this process', not the command's.
            let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
            // Some of them have handlers here, and one of them Rust ignores.
            let _ = emulate_default_handler(signal);
            // Those that nobody has a handler for may be unknown there.
            if let Some(signal) = Signal::from_named_raw(signal) {
                let _ = kill_process(getpid(), signal);
            }
            exit(128 + signal)
        }
    }
}

/// What sockets of engines are called.
pub const MAKE: &str = "outlive-make";

/// The name of a socket for a tree: as long for every tree, since there is room for a hundred bytes.
#[must_use]
pub fn socket_of(kind: &str, tree: &std::path::Path, user: u32) -> String {
    let mut sum = DefaultHasher::new();
    tree.hash(&mut sum);
    format!("{kind}/{user}/{:016x}", sum.finish())
}

/// The innermost tree around this directory for which an engine listens.
#[must_use]
pub fn engine_around(directory: &std::path::Path, user: u32) -> Option<(PathBuf, String)> {
    directory.ancestors().find_map(|tree| {
        let socket = socket_of(MAKE, tree, user);
        link::connect(&socket).ok()?;
        Some((tree.to_owned(), socket))
    })
}

/// The innermost tree around this directory that root watches: builds that are done there are root's, and of no use to others.
#[must_use]
pub fn watched_by_root(directory: &std::path::Path) -> Option<PathBuf> {
    const ROOT: u32 = 0;
    directory.ancestors().find_map(|tree| {
        link::is_listening(&socket_of(MAKE, tree, ROOT), ROOT).then(|| tree.to_owned())
    })
}
