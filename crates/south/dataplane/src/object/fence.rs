//! Limits the output of a service from another thread than the thread with the [`Dataplane`]: the
//! thread that keeps a lease must not wait.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use super::Dataplane;
use crate::{
    abi::{self, Abi},
    attach,
    error::{DataplaneError, SocketContext},
    running::run_program,
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
        run_program(self.control.as_fd(), request.as_bytes_mut()).doing(DOING)?;
        match request.result {
            0 => Ok(()),
            error => Err(DataplaneError::Control {
                what: DOING,
                source: io::Error::from_raw_os_error(-error),
            }),
        }
    }
}
