//! Limits the output of a member from another thread than the thread with the [`MemberPlane`]: the thread that keeps a
//! lease must not wait.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use super::{MemberPlane, abi, nanos};
use crate::{
    abi::Abi,
    attach,
    error::{DataplaneError, SocketContext},
    running::run_program,
};

const DOING: &str = "limit speech";

/// A hold on the program that changes the member's state.
#[derive(Debug)]
pub struct MemberFence {
    control: OwnedFd,
}

impl MemberPlane {
    /// The fence of this member.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn fence(&self) -> Result<MemberFence, DataplaneError> {
        let program = attach::program(&self.object, "member_control")?;
        let control = program.as_fd().try_clone_to_owned().doing(DOING)?;
        Ok(MemberFence { control })
    }
}

impl MemberFence {
    /// End of the permission to send, as time since the host was booted (`CLOCK_BOOTTIME`); 0: none.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn set_lease(&self, end: Duration) -> Result<(), DataplaneError> {
        self.run(abi::member_op::MEMBER_LEASE, nanos(end))
    }

    /// Until when the pool counts as changed a short time ago (`CLOCK_BOOTTIME`).
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn set_quiescence(&self, end: Duration) -> Result<(), DataplaneError> {
        self.run(abi::member_op::MEMBER_QUIESCENCE, nanos(end))
    }

    fn run(&self, op: abi::member_op, argument: u64) -> Result<(), DataplaneError> {
        let mut request = abi::member_control {
            op: op.0,
            argument,
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
