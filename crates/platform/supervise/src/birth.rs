//! Starting a process that is in the cgroup of its service from the first instruction.
//!
//! Moving a process between cgroups waits for an RCU grace period, measured here at 16 ms and more: half of the rest of
//! a recovery. clone3(2) with `CLONE_INTO_CGROUP` (Linux 5.7) creates the process in the right cgroup and costs no
//! time. The standard library has no such option: therefore the few steps between clone and exec are written out here.
//!
//! Rules of the child, which shares the parent's heap and locks in the state of the clone: only system calls, no
//! allocation, no drop, no panic, and `_exit` at the end.

use std::{
    ffi::{CString, OsStr, OsString, c_char},
    fs::File,
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    ptr,
};

use rustix::process::Pid;

/// Strings and pointers for the child, made before the child exists.
pub(crate) struct Birth {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    directory: Option<CString>,
    has_fixed_addresses: bool,
    /// `CLONE_NEW*`.
    namespaces: i32,
}

/// Gets the number of a process before the program of that process begins.
pub type Announce<'a> = &'a mut dyn FnMut(Pid) -> io::Result<()>;

/// A process that runs the program.
pub(crate) struct Born {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

impl Birth {
    /// # Errors
    /// A string holds a NUL byte.
    pub(crate) fn new<'a>(
        program: &Path,
        arguments: impl IntoIterator<Item = &'a OsStr>,
        directory: Option<&Path>,
        variables: &[(OsString, OsString)],
    ) -> io::Result<Self> {
        let is_other =
            |(name, _): &(OsString, OsString)| variables.iter().all(|(one, _)| one != name);
        let environment = std::env::vars_os()
            .filter(is_other)
            .chain(variables.iter().cloned())
            .map(|(name, value)| {
                let mut entry = name;
                entry.push("=");
                entry.push(value);
                c_string(&entry)
            })
            .collect::<io::Result<_>>()?;
        Ok(Self {
            program: c_string(program.as_os_str())?,
            arguments: arguments
                .into_iter()
                .map(c_string)
                .collect::<io::Result<_>>()?,
            environment,
            directory: directory
                .map(|path| c_string(path.as_os_str()))
                .transpose()?,
            has_fixed_addresses: false,
            namespaces: 0,
        })
    }

    /// The process gets new namespaces of these kinds (`CLONE_NEW*`).
    pub(crate) fn with_namespaces(mut self, kinds: i32) -> Self {
        self.namespaces = kinds;
        self
    }

    /// Whether the memory of the process is at the same addresses in each run.
    pub(crate) fn with_fixed_addresses(mut self, has: bool) -> Self {
        self.has_fixed_addresses = has;
        self
    }

    /// Starts the process in the cgroup whose directory is `cgroup`, or in the cgroup of the caller. The process leads
    /// a new session and has the `inherited` descriptors under the given numbers. Returns when the program runs.
    /// `announce` gets the process number before the program begins: the caller knows the number even if the program
    /// dies at once.
    ///
    /// # Errors
    /// The errors of clone3, chdir, execve and `announce`. No process is left then.
    pub(crate) fn start(
        &self,
        cgroup: Option<&File>,
        inherited: &[(BorrowedFd<'_>, RawFd)],
        announce: Announce<'_>,
    ) -> io::Result<Born> {
        let (waits, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let arguments = pointers(&self.arguments);
        let environment = pointers(&self.environment);
        let mut pidfd: RawFd = -1;
        // SAFETY: all zeros is a valid value of this plain structure.
        let mut request: libc::clone_args = unsafe { MaybeUninit::zeroed().assume_init() };
        request.flags = u64::from((libc::CLONE_PIDFD | self.namespaces).cast_unsigned());
        request.pidfd = ptr::from_mut(&mut pidfd) as u64;
        request.exit_signal = libc::SIGCHLD as u64;
        if let Some(cgroup) = cgroup {
            request.flags |= CLONE_INTO_CGROUP;
            request.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
        }
        let size = size_of::<libc::clone_args>();
        // SAFETY: without CLONE_VM this is a fork: the child has a copy of everything, and goes
        // nowhere but into `run_child`, which obeys the rules above.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut request, size) };
        if pid == 0 {
            wait_for_go(waits.as_raw_fd(), go.as_raw_fd());
            self.run_child(&arguments, &environment, inherited, write.as_raw_fd());
        }
        let pid = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just opened the descriptor for this process, and no other code knows the number.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        drop((waits, write));
        let announced = announce(pid).and_then(|()| Ok(rustix::io::write(&go, &[1])?));
        drop(go);
        // Without the byte, the process ends at once.
        let failed = match announced {
            Ok(_) => reported_error(&read)?,
            Err(error) => Some(error),
        };
        match failed {
            None => Ok(Born { pid, pidfd }),
            Some(error) => {
                // The child has ended, or is about to end: the child must not stay a zombie.
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
                Err(error)
            }
        }
    }

    /// Runs the child until exec. If a step fails, the errno goes through the pipe.
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one sequence with one reason
    fn run_child(
        &self,
        arguments: &[*const c_char],
        environment: &[*const c_char],
        inherited: &[(BorrowedFd<'_>, RawFd)],
        report: RawFd,
    ) -> ! {
        let directory = self
            .directory
            .as_ref()
            .map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: bare system calls on memory that outlives the calls. The signal mask is emptied, and SIGPIPE gets its
        // default back, as the standard library does for children: the Rust runtime ignores SIGPIPE.
        unsafe {
            let mut none = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::setsid();
            if self.has_fixed_addresses {
                // A sandbox may forbid the call: most programs do not depend on fixed addresses.
                let now = libc::personality(QUERY_PERSONALITY);
                if now >= 0 {
                    let wanted = (now | libc::ADDR_NO_RANDOMIZE).cast_unsigned();
                    libc::personality(wanted.into());
                }
            }
            let mut ready = crate::limits::lower().is_ok();
            for (fd, number) in inherited {
                ready = ready && libc::dup2(fd.as_raw_fd(), *number) >= 0;
            }
            if ready && (directory.is_null() || libc::chdir(directory) == 0) {
                libc::execve(
                    self.program.as_ptr(),
                    arguments.as_ptr(),
                    environment.as_ptr(),
                );
            }
            let errno = *libc::__errno_location();
            libc::write(report, ptr::from_ref(&errno).cast(), size_of::<i32>());
            libc::_exit(127)
        }
    }
}

/// Waits for the byte that ends the announcement of this process. Without a byte, the starting process is gone or
/// has failed.
#[allow(clippy::multiple_unsafe_ops_per_block)] // one sequence with one reason
fn wait_for_go(waits: RawFd, go: RawFd) {
    let mut byte = 0u8;
    // SAFETY: bare system calls in the child of a fork, with a buffer on the stack. The write end is closed first,
    // because then the end of the starting process ends the wait.
    unsafe {
        libc::close(go);
        loop {
            match libc::read(waits, (&raw mut byte).cast(), 1) {
                1 => return,
                -1 if *libc::__errno_location() == libc::EINTR => {}
                _ => libc::_exit(127),
            }
        }
    }
}

/// linux/sched.h; the constant of libc is an `int`, which is too small.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// personality(2): returns the present value without a change.
const QUERY_PERSONALITY: libc::c_ulong = 0xffff_ffff;

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a NUL byte in an argument"))
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([ptr::null()])
        .collect()
}

/// The errno that the child wrote; `None` if exec closed the child's end of the pipe.
fn reported_error(pipe: &OwnedFd) -> io::Result<Option<io::Error>> {
    let mut errno = [0u8; 4];
    loop {
        match rustix::io::read(pipe, &mut errno) {
            Ok(4) => {
                return Ok(Some(io::Error::from_raw_os_error(i32::from_ne_bytes(
                    errno,
                ))));
            }
            Ok(_) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
