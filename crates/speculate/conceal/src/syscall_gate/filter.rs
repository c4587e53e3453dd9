//! The filter that has the kernel ask.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

use super::named;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Of this program (linux/audit.h).
#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("which calls are made is known for x86-64 and 64-bit ARM");

/// Calls with numbers from here on have 32-bit pointers (x86-64 only).
const X32: u32 = 0x4000_0000;

/// A call that concerns other processes, or may.
#[derive(Clone, Copy)]
struct GatedCall {
    number: libc::c_long,
    when: Condition,
}

#[derive(Clone, Copy)]
enum Condition {
    Always,
    /// The argument has a bit of this mask.
    Has(u32, u32),
    /// The argument, a process, is not 0: 0 means the caller.
    Other(u32),
    /// The argument has this value.
    Is(u32, u32),
    /// The call does not exist for the program.
    Never,
    /// A socket to other hosts, or a socket that can send without a connection.
    Network,
}

const fn always(number: libc::c_long) -> GatedCall {
    GatedCall {
        number,
        when: Condition::Always,
    }
}

const fn has(number: libc::c_long, argument: u32, bits: u32) -> GatedCall {
    GatedCall {
        number,
        when: Condition::Has(argument, bits),
    }
}

const fn other(number: libc::c_long, argument: u32) -> GatedCall {
    GatedCall {
        number,
        when: Condition::Other(argument),
    }
}

/// Calls that may be asked about, frequent ones first.
const GATED_CALLS: &[GatedCall] = &[
    has(libc::SYS_openat, 2, WRITE_FLAGS),
    has(libc::SYS_clone, 0, NAMESPACE_FLAGS),
    GatedCall {
        number: libc::SYS_ioctl,
        when: Condition::Is(1, SIZE_REQUEST),
    },
    // A caller that begins children by clone3(2) falls back to clone(2) if clone3(2) is missing.
    GatedCall {
        number: libc::SYS_clone3,
        when: Condition::Never,
    },
    GatedCall {
        number: libc::SYS_socket,
        when: Condition::Network,
    },
    GatedCall {
        number: libc::SYS_socketpair,
        when: Condition::Network,
    },
    always(libc::SYS_connect),
    always(libc::SYS_openat2),
    always(libc::SYS_mkdirat),
    always(libc::SYS_mknodat),
    always(libc::SYS_symlinkat),
    always(libc::SYS_linkat),
    always(libc::SYS_unlinkat),
    always(libc::SYS_renameat),
    always(libc::SYS_renameat2),
    always(libc::SYS_fchmodat),
    always(libc::SYS_utimensat),
    always(libc::SYS_fchownat),
    always(libc::SYS_fchmod),
    always(libc::SYS_fchown),
    always(libc::SYS_truncate),
    always(named::SYS_FCHMODAT2),
    always(libc::SYS_setxattr),
    always(libc::SYS_lsetxattr),
    always(libc::SYS_fsetxattr),
    always(libc::SYS_removexattr),
    always(libc::SYS_lremovexattr),
    always(libc::SYS_fremovexattr),
    always(named::SYS_SETXATTRAT),
    always(named::SYS_REMOVEXATTRAT),
    always(named::SYS_FILE_SETATTR),
    always(libc::SYS_kill),
    always(libc::SYS_tkill),
    always(libc::SYS_tgkill),
    always(libc::SYS_rt_sigqueueinfo),
    always(libc::SYS_rt_tgsigqueueinfo),
    always(libc::SYS_pidfd_send_signal),
    always(libc::SYS_ptrace),
    always(libc::SYS_bind),
    always(libc::SYS_process_vm_writev),
    always(libc::SYS_pidfd_getfd),
    other(libc::SYS_prlimit64, 0),
    other(libc::SYS_sched_setaffinity, 0),
    other(libc::SYS_sched_setscheduler, 0),
    other(libc::SYS_sched_setparam, 0),
    other(libc::SYS_sched_setattr, 0),
    always(libc::SYS_setpriority),
    always(libc::SYS_ioprio_set),
    always(libc::SYS_open_by_handle_at),
    always(libc::SYS_fanotify_init),
    always(libc::SYS_keyctl),
    always(libc::SYS_add_key),
    always(libc::SYS_request_key),
    always(libc::SYS_mount),
    always(libc::SYS_umount2),
    always(libc::SYS_pivot_root),
    always(libc::SYS_move_mount),
    always(libc::SYS_fsopen),
    always(libc::SYS_fspick),
    always(libc::SYS_open_tree),
    always(libc::SYS_mount_setattr),
    always(libc::SYS_setns),
    always(libc::SYS_unshare),
    always(libc::SYS_reboot),
    always(libc::SYS_swapon),
    always(libc::SYS_swapoff),
    always(libc::SYS_sethostname),
    always(libc::SYS_setdomainname),
    always(libc::SYS_settimeofday),
    always(libc::SYS_clock_settime),
    always(libc::SYS_adjtimex),
    always(libc::SYS_clock_adjtime),
    always(libc::SYS_syslog),
    always(libc::SYS_acct),
    always(libc::SYS_quotactl),
    always(libc::SYS_quotactl_fd),
    always(libc::SYS_init_module),
    always(libc::SYS_finit_module),
    always(libc::SYS_delete_module),
    always(libc::SYS_kexec_load),
    always(libc::SYS_kexec_file_load),
    always(libc::SYS_bpf),
    always(libc::SYS_io_uring_setup),
];

/// The same where there are older calls.
#[cfg(target_arch = "x86_64")]
const GATED_X86_CALLS: &[GatedCall] = &[
    has(libc::SYS_open, 1, WRITE_FLAGS),
    always(libc::SYS_creat),
    always(libc::SYS_iopl),
    always(libc::SYS_ioperm),
    always(libc::SYS_mkdir),
    always(libc::SYS_mknod),
    always(libc::SYS_symlink),
    always(libc::SYS_link),
    always(libc::SYS_unlink),
    always(libc::SYS_rmdir),
    always(libc::SYS_rename),
    always(libc::SYS_chmod),
    always(libc::SYS_chown),
    always(libc::SYS_lchown),
    always(libc::SYS_utime),
    always(libc::SYS_utimes),
    always(libc::SYS_futimesat),
];
#[cfg(not(target_arch = "x86_64"))]
const GATED_X86_CALLS: &[GatedCall] = &[];

/// Flags of a file that is made, or written to.
const WRITE_FLAGS: u32 =
    (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC).cast_unsigned();
/// Request for the size of a terminal.
#[expect(clippy::cast_possible_truncation, reason = "requests have 32 bits")]
const SIZE_REQUEST: u32 = libc::TIOCGWINSZ as u32;
/// Flags of a child that would no longer belong to the encapsulation.
const NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned();

// Offsets in `struct seccomp_data`, and the codes of classic BPF (linux/filter.h).
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;
const BPF_LOAD_WORD: u16 = 0x20;
const IS_EQUAL: u16 = 0x15;
const IS_AT_LEAST: u16 = 0x35;
const HAS_BIT: u16 = 0x45;
const BPF_AND: u16 = 0x54;
const BPF_RETURN: u16 = 0x06;
/// The bits of a socket's type that are no flags.
const SOCKET_TYPE_MASK: u32 = 0xf;

/// A caller whose call was received waits until the answer or a kill: other signals would make calls fail (`EINTR`)
/// that never fail so.
const FILTER_FLAGS: libc::c_ulong =
    libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;

/// Instructions before the instructions of the calls, and number of instructions of the whole program.
const CALLS_AT: usize = 5;
const PROGRAM_LENGTH: usize = CALLS_AT + total(GATED_CALLS) + total(GATED_X86_CALLS) + 1;
static PROGRAM: [libc::sock_filter; PROGRAM_LENGTH] = program();

/// Makes the kernel ask for this thread and all its descendants, and sends the listener through that socket. Allocates
/// no memory, because the call takes place between fork and exec.
pub(crate) fn install(through: BorrowedFd<'_>) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: PROGRAM_LENGTH.try_into().map_err(io::Error::other)?,
        filter: PROGRAM.as_ptr().cast_mut(),
    };
    // SAFETY: the program lives as long as the call, which only reads it.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            FILTER_FLAGS,
            &raw const program,
        )
    };
    let Ok(listener @ 0..) = i32::try_from(listener) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: the kernel has just made the descriptor, and no other code knows the number.
    let listener = unsafe { OwnedFd::from_raw_fd(listener) };
    let descriptors = [listener.as_fd()];
    let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        through,
        &[io::IoSlice::new(&[0])],
        &mut control,
        SendFlags::empty(),
    )?;
    Ok(())
}

const fn instruction(code: u16, yes: u8, no: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: yes,
        jf: no,
        k,
    }
}

const fn answer(answer: u32) -> libc::sock_filter {
    instruction(BPF_RETURN, 0, 0, answer)
}

const ASK_SUPERVISOR: libc::sock_filter = answer(libc::SECCOMP_RET_USER_NOTIF);
const ALLOW_CALL: libc::sock_filter = answer(libc::SECCOMP_RET_ALLOW);
const MISSING_CALL: libc::sock_filter =
    answer(libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned());

const fn load(argument: u32) -> libc::sock_filter {
    instruction(BPF_LOAD_WORD, 0, 0, FIRST_ARGUMENT + 8 * argument)
}

/// How many instructions a call takes.
const fn length(when: Condition) -> u8 {
    match when {
        Condition::Always | Condition::Never => 2,
        Condition::Has(..) | Condition::Is(..) | Condition::Other(_) => 5,
        Condition::Network => 9,
    }
}

const fn total(all: &[GatedCall]) -> usize {
    let (mut total, mut which) = (0, 0);
    while which < all.len() {
        total += length(all[which].when) as usize;
        which += 1;
    }
    total
}

/// Instructions that recognise a call and check the condition. (The end of the program may be too far for a jump: each
/// call has its own answer.)
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "calls have small numbers"
)]
const fn part(asked: GatedCall) -> [libc::sock_filter; 9] {
    let mut all = [ALLOW_CALL; 9];
    all[0] = instruction(IS_EQUAL, 0, length(asked.when) - 1, asked.number as u32);
    match asked.when {
        Condition::Always => all[1] = ASK_SUPERVISOR,
        Condition::Never => all[1] = MISSING_CALL,
        Condition::Has(argument, bits) => {
            all[1] = load(argument);
            all[2] = instruction(HAS_BIT, 0, 1, bits);
            all[3] = ASK_SUPERVISOR;
        }
        Condition::Is(argument, value) => {
            all[1] = load(argument);
            all[2] = instruction(IS_EQUAL, 0, 1, value);
            all[3] = ASK_SUPERVISOR;
        }
        Condition::Other(argument) => {
            all[1] = load(argument);
            all[2] = instruction(IS_EQUAL, 1, 0, 0);
            all[3] = ASK_SUPERVISOR;
        }
        Condition::Network => {
            all[1] = load(0);
            all[2] = instruction(IS_EQUAL, 0, 4, libc::AF_UNIX.cast_unsigned());
            all[3] = load(1);
            all[4] = instruction(BPF_AND, 0, 0, SOCKET_TYPE_MASK);
            all[5] = instruction(IS_EQUAL, 2, 0, libc::SOCK_STREAM.cast_unsigned());
            all[6] = instruction(IS_EQUAL, 1, 0, libc::SOCK_SEQPACKET.cast_unsigned());
            all[7] = ASK_SUPERVISOR;
        }
    }
    all
}

/// The filter program: architecture, number, and condition of each call.
const fn program() -> [libc::sock_filter; PROGRAM_LENGTH] {
    let mut all = [ALLOW_CALL; PROGRAM_LENGTH];
    all[0] = instruction(BPF_LOAD_WORD, 0, 0, ARCHITECTURE_OFFSET);
    all[1] = instruction(IS_EQUAL, 0, 2, ARCHITECTURE);
    all[2] = instruction(BPF_LOAD_WORD, 0, 0, NUMBER_OFFSET);
    all[3] = instruction(IS_AT_LEAST, 0, 1, X32);
    all[4] = ASK_SUPERVISOR;
    let at = fill(&mut all, CALLS_AT, GATED_CALLS);
    fill(&mut all, at, GATED_X86_CALLS);
    all
}

/// Writes the instructions of `asked` from `from` on. Returns the end.
const fn fill(
    all: &mut [libc::sock_filter; PROGRAM_LENGTH],
    from: usize,
    asked: &[GatedCall],
) -> usize {
    let (mut at, mut which) = (from, 0);
    while which < asked.len() {
        let part = part(asked[which]);
        let mut next = 0;
        while next < length(asked[which].when) as usize {
            all[at] = part[next];
            at += 1;
            next += 1;
        }
        which += 1;
    }
    at
}
