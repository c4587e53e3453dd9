//! Limits the output of a service from another thread than the thread with the [`Dataplane`]: the
//! thread that keeps a lease must not wait.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use libbpf_rs::libbpf_sys::{bpf_prog_test_run_opts, bpf_test_run_opts};

use super::Dataplane;
use crate::{
    abi::{self, Abi},
    attach,
    error::{DataplaneError, SocketContext},
};

const DOING: &str = "limit speech";

/// A hold on the program that changes the service's state, for as long as this lives.
#[derive(Debug)]
pub struct Fence {
    control: OwnedFd,
}

impl Dataplane {
    /// The fence of this service.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn fence(&self) -> Result<Fence, DataplaneError> {
        let program = attach::program(&self.object, "control")?;
        let control = program.as_fd().try_clone_to_owned().doing(DOING)?;
        Ok(Fence { control })
    }
}

impl Fence {
    /// End of the permission to send, as time since the host was booted (`CLOCK_BOOTTIME`): from
    /// then on no packet of the service leaves. `None`: no lease is needed.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn set_lease(&self, end: Option<Duration>) -> Result<(), DataplaneError> {
        // 0 means no end; any other time this early is over.
        let end = end.map_or(0, |end| {
            u64::try_from(end.as_nanos()).unwrap_or(u64::MAX).max(1)
        });
        let mut request = abi::control {
            op: abi::control_op::CONTROL_LEASE.0,
            argument: end,
            ..Default::default()
        };
        self.run(request.as_bytes_mut()).doing(DOING)?;
        match request.result {
            0 => Ok(()),
            error => Err(DataplaneError::Control {
                what: DOING,
                source: io::Error::from_raw_os_error(-error),
            }),
        }
    }

    fn run(&self, request: &mut [u8]) -> io::Result<()> {
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>()
                .try_into()
                .unwrap_or_default(),
            ctx_in: request.as_mut_ptr().cast(),
            ctx_size_in: u32::try_from(request.len()).unwrap_or_default(),
            ..Default::default()
        };
        // SAFETY: the descriptor is open for as long as `self`; the kernel reads `request`, and
        // writes `request` back in the same length, during the borrow here.
        let result = unsafe { bpf_prog_test_run_opts(self.control.as_raw_fd(), &raw mut options) };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(())
    }
}
