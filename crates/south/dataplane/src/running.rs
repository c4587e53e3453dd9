//! Runs a program of the kind `syscall` from any thread.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use libbpf_rs::libbpf_sys::{bpf_prog_test_run_opts, bpf_test_run_opts};

/// Runs the program with `request` as the argument, which the program may change.
pub(crate) fn run_program(program: BorrowedFd<'_>, request: &mut [u8]) -> io::Result<()> {
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>()
            .try_into()
            .unwrap_or_default(),
        ctx_in: request.as_mut_ptr().cast(),
        ctx_size_in: u32::try_from(request.len()).unwrap_or_default(),
        ..Default::default()
    };
    // SAFETY: the descriptor is open for the borrow; the kernel reads `request`, and writes
    // `request` back in the same length, during the borrow here.
    let result = unsafe { bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}
