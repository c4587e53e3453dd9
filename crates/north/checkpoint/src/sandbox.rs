//! A sandbox: namespaces for a single process, and our first process there (`outlive sandbox`).
//!
//! A shadow replay runs in a closed sandbox: the replay binds the service's addresses in an empty network, and its
//! standard streams are `/dev/null`. A restored process needs the process and thread numbers of its image: in a sandbox
//! these numbers are free. The process that becomes the service is in an open sandbox, in the host's network, and stays
//! there. All processes of a sandbox end with its first process.

use std::{
    ffi::OsString,
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::ffi::OsStrExt as _,
        unix::fs::MetadataExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use north_host::{
    Library,
    layout::{FILE_FD, HANDOVER_FD, LIBRARY_FD, MUTE_FLAGS, SOCKET_FD, resume_name},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{WaitOptions, wait},
};
use supervise::{Addresses, Command, redirect_inherited};

use crate::{
    criu::{Criu, CriuError},
    handle::{SandboxReport, SandboxRequest, receive_request, send_report, send_rights},
    manifest,
};

/// The hidden command that makes our own binary the first process of a sandbox.
pub const SANDBOX_COMMAND: &str = "sandbox";

/// First process number of a shadow replay. CRIU's own processes start first during a restore, and have lower numbers.
const FIRST_PID: u32 = 10_000;

/// Index of the loopback device in a new network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Longest time between a restore and the report of the restored process.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two checks for an ended process.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The task of a sandbox.
#[derive(Debug, Clone)]
pub struct Purpose {
    /// Path of CRIU.
    pub criu: PathBuf,
    /// The image to restore; `None`: the command is started.
    pub image: Option<PathBuf>,
    /// Number of the image.
    pub number: u64,
    /// Whether the process becomes the service.
    pub serves: bool,
    /// The command of a shadow replay from the beginning.
    pub command: Vec<OsString>,
}

/// Failure of a sandbox.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
    #[error(transparent)]
    Criu(#[from] CriuError),
    #[error(transparent)]
    Spawn(#[from] supervise::SpawnError),
    #[error("the process that was made from the image has ended")]
    Ended,
    #[error("the process that was made from the image does not say that it goes on")]
    Silent,
    #[error("no instruction comes for the process that was made from the image")]
    Alone,
    #[error(
        "the server has {0:?} open to write to it, and not only to append: an image of it could not be made a process again when the file has grown"
    )]
    Writes(PathBuf),
}

trait Doing<T> {
    fn doing(self, what: &'static str) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: &'static str) -> Result<T, Failure> {
        self.map_err(|error| Failure::System(what, error.into()))
    }
}

/// Runs as the first process of a sandbox. Standard input is the supervisor's socket. Returns whether all went well.
#[must_use]
pub fn run(purpose: &Purpose) -> bool {
    let Ok(control) = io::stdin().as_fd().try_clone_to_owned() else {
        return false;
    };
    match run_until_done(purpose, control.as_fd()) {
        Ok(()) => true,
        Err(failure) => {
            let _ = send_report(
                control.as_fd(),
                &SandboxReport::Failed(failure.to_string()),
                &[],
            );
            false
        }
    }
}

fn run_until_done(purpose: &Purpose, control: BorrowedFd<'_>) -> Result<(), Failure> {
    prepare(purpose.serves)?;
    let Some(SandboxRequest::Begin(given)) = receive_request(control).doing("hear what to do")?
    else {
        return Err(Failure::Alone);
    };
    let criu = Criu::at(purpose.criu.clone());
    match &purpose.image {
        None => start(purpose, given)?,
        Some(image) => make(purpose, &criu, image, control, given)?,
    }
    if purpose.serves {
        reap_all();
        return Ok(());
    }
    serve_requests(&criu, control)
}

/// Sets up mounts, network and standard streams of the sandbox.
fn prepare(serves: bool) -> Result<(), Failure> {
    // Mounts of the host appear in the sandbox, and mounts of the sandbox stay in the sandbox.
    let kind = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", kind).doing("keep mounts apart")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).doing("mount /proc")?;
    if serves {
        return Ok(());
    }
    for name in ["ipv4", "ipv6"] {
        // A socket can bind addresses that the sandbox does not have. A kernel without IPv6 has no such file for
        // IPv6.
        let _ = fs::write(format!("/proc/sys/net/{name}/ip_nonlocal_bind"), "1");
    }
    // CRIU probes features of the kernel on the loopback device.
    let mut network = Addresses::open().doing("reach the network of the sandbox")?;
    network
        .switch_on(LOOPBACK_INDEX)
        .doing("switch the network of the sandbox on")?;
    let mute = null_stream().doing("open /dev/null")?;
    redirect_inherited(mute.as_fd()).doing("mute")?;
    rustix::stdio::dup2_stdin(&mute).doing("mute")?;
    rustix::stdio::dup2_stdout(&mute).doing("mute")?;
    rustix::stdio::dup2_stderr(&mute).doing("mute")
}

/// Sets the command up as the service is started: the replay may depend on addresses, such as the order of objects in
/// memory.
#[must_use]
pub fn preloaded(command: Command) -> Command {
    let command = command.fixed_addresses();
    let variables = Library::variables().into_iter();
    variables.fold(command, |command, (name, value)| {
        command.variable(name, value)
    })
}

/// A standard stream of a shadow replay: `/dev/null`, recognizable by the flags.
fn null_stream() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let flags = flags | OFlags::from_bits_retain(MUTE_FLAGS.cast_unsigned());
    Ok(rustix::fs::open("/dev/null", flags, Mode::empty())?)
}

/// Starts a shadow replay from the beginning.
fn start(purpose: &Purpose, given: Vec<OwnedFd>) -> Result<(), Failure> {
    let last = (FIRST_PID - 1).to_string();
    fs::write("/proc/sys/kernel/ns_last_pid", last).doing("number processes")?;
    let numbers = [FILE_FD, SOCKET_FD, HANDOVER_FD, LIBRARY_FD];
    let inherited: Vec<_> = given.iter().map(AsFd::as_fd).zip(numbers).collect();
    preloaded(Command::new(purpose.command.clone())).start_beside(&inherited)?;
    Ok(())
}

/// Restores the process of an image, and gives the process its descriptors. Without descriptors the restore is a trial:
/// the process gets nothing, and waits.
fn make(
    purpose: &Purpose,
    criu: &Criu,
    image: &Path,
    control: BorrowedFd<'_>,
    given: Vec<OwnedFd>,
) -> Result<(), Failure> {
    let name =
        SocketAddr::from_abstract_name(resume_name(purpose.number)).doing("name a socket")?;
    let listener = UnixListener::bind_addr(&name).doing("wait for the process")?;
    criu.restore(image)?;
    let guest = accept_guest(&listener)?;
    send_report(control, &SandboxReport::Resumed, &[guest.as_fd()]).doing("tell of the process")?;
    if purpose.serves || given.is_empty() {
        // The process of a trial never gets permission.
        let heard = receive_request(control).doing("hear what to do")?;
        let Some(SandboxRequest::Go) = heard else {
            return Err(Failure::Alone);
        };
    }
    let own = (io::stdin(), io::stdout(), io::stderr());
    let mut rights: Vec<_> = given.iter().map(AsFd::as_fd).collect();
    if !purpose.serves {
        rights.extend([own.0.as_fd(), own.1.as_fd(), own.2.as_fd()]); // the standard streams of a shadow replay
    }
    send_rights(guest.as_fd(), &[0], &rights).doing("give the process what it needs")
}

/// Waits for the restored process, which is a process of this sandbox.
fn accept_guest(listener: &UnixListener) -> Result<UnixStream, Failure> {
    let until = Instant::now() + RESTORE_TIMEOUT;
    while Instant::now() < until {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        let glance = Timespec::try_from(POLL_INTERVAL).unwrap_or_default();
        if poll(&mut fds, Some(&glance)).doing("wait for the process")? > 0 {
            let (stream, _) = listener.accept().doing("wait for the process")?;
            let who = getsockopt(&stream, PeerCredentials).doing("look who it is")?;
            if who.pid() != 0 {
                return Ok(stream);
            }
        }
        if !reap_ended() {
            return Err(Failure::Ended);
        }
    }
    Err(Failure::Silent)
}

/// Reaps ended processes. Returns whether a process is left.
fn reap_ended() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Reaps processes until no process is left.
fn reap_all() {
    while let Ok(Some(_)) | Err(rustix::io::Errno::INTR) = wait(WaitOptions::empty()) {}
}

/// Beginning of the link text of an anonymous memory file in `/proc/PID/fd`.
const MEMFD_PREFIX: &[u8] = b"/memfd:";

/// Refuses files for which CRIU compares lengths: all open files except files that are only appended to.
fn refuse_open_files() -> Result<(), Failure> {
    let of = |what: &str| PathBuf::from(format!("/proc/{FIRST_PID}/{what}"));
    let doing = "look at the files of the shadow replay";
    for entry in fs::read_dir(of("fd")).doing(doing)? {
        let entry = entry.doing(doing)?;
        let Ok(about) = fs::metadata(entry.path()) else {
            continue; // a socket of another network
        };
        let name = entry.file_name();
        let text = fs::read_to_string(of("fdinfo").join(name)).doing(doing)?;
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        let flags = OFlags::from_bits_retain(flags.unwrap_or_default());
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let appends = flags.contains(OFlags::WRONLY | OFlags::APPEND);
        let path = fs::read_link(entry.path()).unwrap_or_default();
        let is_gone = about.nlink() == 0;
        // The image contains files that exist in memory only.
        let is_shared =
            about.is_file() && !(is_gone && path.as_os_str().as_bytes().starts_with(MEMFD_PREFIX));
        if is_shared && writes && (is_gone || !appends) {
            return Err(Failure::Writes(path));
        }
    }
    Ok(())
}

/// Serves requests of the supervisor for a shadow replay. The sandbox ends with the supervisor.
fn serve_requests(criu: &Criu, control: BorrowedFd<'_>) -> Result<(), Failure> {
    loop {
        let mut fds = [PollFd::new(&control, PollFlags::IN)];
        let glance = Timespec::try_from(POLL_INTERVAL).unwrap_or_default();
        if poll(&mut fds, Some(&glance)).doing("wait for the supervisor")? == 0 {
            if !reap_ended() {
                return Err(Failure::Ended);
            }
            continue;
        }
        match receive_request(control).doing("hear the supervisor")? {
            Some(SandboxRequest::Dump(directory)) => {
                refuse_open_files()?;
                criu.dump(FIRST_PID, &directory)?;
                manifest::write(&directory).doing("note what the image is")?;
                send_report(control, &SandboxReport::Dumped, &[]).doing("tell of the image")?;
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
}
