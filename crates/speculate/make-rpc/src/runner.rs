//! The program in the place of a command of make. The runner asks the engine for the command, and becomes the command
//! if the engine does not run the command.

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
    link::{self, Gain, Reply, Request, SignalRelay},
};

/// A command with the environment, descriptors and streams of this process.
///
/// # Errors
/// No current directory.
pub fn command(program: OsString, arguments: Vec<OsString>) -> io::Result<Command> {
    // Only a change returns the mask.
    let mask = umask(rustix::fs::Mode::empty());
    umask(mask);
    let environment = Environment::own();
    let flags = environment.get(jobserver::JOBSERVER_VARIABLES[0]);
    let jobserver = jobserver::advertised(flags);
    let mut others = inherited_descriptors();
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

/// Descriptors beyond the streams that a shell can name.
const SHELL_DESCRIPTORS: std::ops::Range<i32> = 3..10;

/// The descriptors that children of this process inherit.
fn inherited_descriptors() -> Vec<i32> {
    SHELL_DESCRIPTORS
        .filter(|number| jobserver::is_given(*number))
        .collect()
}

/// Closes these descriptors in children of this process: output there would be visible.
pub fn close_inherited_in_children() {
    for number in inherited_descriptors() {
        // SAFETY: the call changes a flag of an open descriptor.
        let _ = fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC);
    }
}

/// Whether output and errors go to the same place, which is no terminal: the order of both counts.
fn is_joined() -> bool {
    let place = |stream| {
        let file = fstat(stream).ok()?;
        Some((file.st_dev, file.st_ino))
    };
    !isatty(stdout()) && place(stdout()).is_some_and(|out| place(stderr()) == Some(out))
}

/// The size of the terminal, if the streams have a terminal.
fn size() -> Option<(u16, u16)> {
    let of = |stream| tcgetwinsize(stream).ok();
    let size = of(stdout())
        .or_else(|| of(stderr()))
        .or_else(|| of(stdin()))?;
    Some((size.ws_row, size.ws_col))
}

/// Whether standard input is an empty pipe without a writer. Make gives that to all parallel commands but one.
fn is_pipe_without_writer() -> bool {
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

/// Has the engine run the command, or becomes the command. Returns the gain, if the engine ran the command.
///
/// # Errors
/// The command cannot be executed.
pub fn run(
    socket: &str,
    command: Command,
    request: fn(Command) -> Request,
) -> io::Result<(Status, Gain)> {
    let mut concealed = command.clone();
    jobserver::without_name(&mut concealed);
    let asked = request(concealed);
    let mut sent = SignalRelay::default();
    let reply = link::ask_with_signals(socket, &asked, &mut sent);
    if let Ok(Reply::Done(status, gain)) = reply {
        return Ok((status, gain));
    }
    // The signal would have ended the command.
    if let Some(signal) = sent.leave() {
        end_as(Status::Signalled(signal));
    }
    match reply {
        Ok(Reply::PlainRun(plainly)) => {
            if let Some(why) = plainly.why {
                eprintln!("outlive: {why}");
            }
            if let Some(process) = plainly.beside {
                leave_mounts(process, &command);
            }
            return Err(become_it(&command, &plainly.also));
        }
        // The messages of make alone belong here.
        Err(error) if !matches!(asked, Request::Run(_)) => {
            let why = link::why(&error);
            eprintln!("outlive: who watches does not answer ({why}): this is plain make");
        }
        _ => {}
    }
    Err(become_it(&command, &[]))
}

/// Moves to the mounts of a process with the real files: a requested command need not use the concealing file systems.
/// The process stays in the present mounts if a move is not permitted, or if the directory is missing there.
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
        // The directory was there just now: its removal concerns make, too.
        eprintln!("outlive: {} is gone", command.directory.display());
    }
}

/// Runs the command as make would, and returns the end.
#[must_use]
pub fn for_make(socket: &str, program: OsString, arguments: Vec<OsString>) -> Status {
    let name = arguments.first().unwrap_or(&program).clone();
    let done = match command(program.clone(), arguments.clone()) {
        Ok(mut command) => {
            command.reads_nothing |= is_pipe_without_writer();
            run(socket, command, Request::Run)
        }
        // A command may have removed the working directory, and programs can still start.
        Err(_) => Err(exec(&program, &arguments, &Environment::own())),
    };
    match done {
        Ok((status, _)) => status,
        Err(error) => {
            // The message of make for a program that cannot start, such as a script without an interpreter.
            let why = error.to_string();
            let why = why.split(" (os error").next().unwrap_or_default();
            eprintln!("{}: {}: {why}", make_itself(), name.display());
            Status::Exited(127)
        }
    }
}

/// The level of the make (MAKELEVEL).
fn make_itself() -> String {
    let level = std::env::var("MAKELEVEL").ok();
    // The commands of a make are one level deeper.
    match level.and_then(|level| level.parse().ok()) {
        Some(above @ 2u32..) => format!("make[{}]", above - 1),
        _ => "make".into(),
    }
}

/// Becomes the command, with further variables. Returns the error if the exec fails.
#[must_use]
pub fn become_it(command: &Command, also: &[(String, String)]) -> io::Error {
    let mut environment = command.environment.clone();
    for (name, value) in also {
        environment.set(name, value);
    }
    exec(&command.program, &command.arguments, &environment)
}

fn exec(program: &OsStr, arguments: &[OsString], environment: &Environment) -> io::Error {
    // The state under make: a program in Rust ignores SIGPIPE, and the runner is written in Rust.
    // SAFETY: the default action of a signal needs no code of this process.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    become_program(program, arguments, environment)
}

/// Ends as the command has ended, at once: exit handlers belong to make where this is a copy of make.
pub fn end_as(status: Status) -> ! {
    // SAFETY: no output of this process is buffered.
    let exit = |code| unsafe { libc::_exit(code) };
    match status {
        Status::Exited(code) => exit(code),
        Status::Signalled(signal) => {
            // A core file would be of this process, not of the command.
            let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
            // Some signals have handlers here, and Rust ignores SIGPIPE.
            let _ = emulate_default_handler(signal);
            // Some signals without handlers may be unknown to the library.
            if let Some(signal) = Signal::from_named_raw(signal) {
                let _ = kill_process(getpid(), signal);
            }
            exit(128 + signal)
        }
    }
}

/// Kind of the socket of a watcher.
pub const MAKE: &str = "outlive-make";

/// The name of the socket for a tree, with the same length for every tree: an abstract name has a hundred bytes.
#[must_use]
pub fn socket_of(kind: &str, tree: &std::path::Path, user: u32) -> String {
    let mut sum = DefaultHasher::new();
    tree.hash(&mut sum);
    format!("{kind}/{user}/{:016x}", sum.finish())
}

/// The innermost tree around this directory with a listening engine.
#[must_use]
pub fn engine_around(directory: &std::path::Path, user: u32) -> Option<(PathBuf, String)> {
    directory.ancestors().find_map(|tree| {
        let socket = socket_of(MAKE, tree, user);
        link::connect(&socket).ok()?;
        Some((tree.to_owned(), socket))
    })
}

/// The innermost tree around this directory with a watcher of root: a build there is of use to root alone.
#[must_use]
pub fn watched_by_root(directory: &std::path::Path) -> Option<PathBuf> {
    const ROOT_USER: u32 = 0;
    directory.ancestors().find_map(|tree| {
        link::is_listening(&socket_of(MAKE, tree, ROOT_USER), ROOT_USER).then(|| tree.to_owned())
    })
}
