//! Reasons of a failed replay.

use std::{fmt, sync::atomic::Ordering};

use north_abi::{Call, layout::Failure};

use super::Memory;

/// Reason and place of a failed replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Divergence {
    /// The process whose replay failed.
    pub process: u32,
    /// Position in the stream, bytes.
    pub at: u64,
    /// The reason; `None`: unknown to this version.
    pub failure: Option<Failure>,
    /// The call of the server.
    pub called: Option<Call>,
    /// The call in the record.
    pub recorded: Option<Call>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.failure {
            Some(Failure::OtherCall) => "the server made another call than in the record",
            Some(Failure::OtherDescriptor) => {
                "the server used another descriptor, or another file, than in the record"
            }
            Some(Failure::BadRecord) => "the record cannot be read",
            Some(Failure::OtherOutput) => "the server produced other output than in the record",
            Some(Failure::OtherClock) => {
                "the server read a clock another number of times than in the record"
            }
            Some(Failure::DescriptorTaken) => "the descriptor of a connection is in use",
            Some(Failure::OtherLength) => {
                "a call returned another number of bytes than the server asked for"
            }
            Some(Failure::OtherFile) => "a file that the server reads or writes has changed",
            Some(Failure::PortTaken) => {
                "another program has the port that the kernel had chosen for a listening socket"
            }
            Some(Failure::NotSupported) => "the server made a call that cannot be replayed",
            Some(Failure::OtherProgram) => "the server runs another program",
            Some(Failure::LockTaken) => {
                "another program has locked a file that the server had locked"
            }
            Some(Failure::OtherVersion) => "another version of outlive made the record",
            Some(Failure::NamedSocket) => "the server has a socket with a name in the file system",
            Some(Failure::SharedMemory) => "the server writes to a mapped file (MAP_SHARED)",
            Some(Failure::Fifo) => "the server has opened a FIFO",
            Some(Failure::HelperChanges) => "threads of the server change files",
            Some(Failure::HelperRuns) => {
                "a thread of the server does not come to rest, unlike in the record"
            }
            Some(Failure::HelperIsSilent) => "a thread of the server does not repeat its output",
            None => "no reason is known",
        };
        write!(
            f,
            "{what}, in process {} after {} bytes of the record",
            self.process, self.at
        )?;
        match (self.called, self.recorded) {
            (Some(called), Some(recorded)) => {
                write!(f, " ({called:?}; the record has {recorded:?})")
            }
            (Some(called), None) => write!(f, " ({called:?})"),
            _ => Ok(()),
        }
    }
}

impl Memory {
    /// The divergence; `None`: no replay has failed.
    #[must_use]
    pub fn divergence(&self) -> Option<Divergence> {
        let page = self.page();
        let code = page.failure.load(Ordering::Acquire);
        let call = |index: usize| {
            let code = page.failed_calls[index].load(Ordering::Relaxed);
            u8::try_from(code).ok().and_then(Call::from_code)
        };
        (code != 0).then(|| Divergence {
            process: page.failed_process.load(Ordering::Relaxed),
            at: page.failed_at.load(Ordering::Relaxed),
            failure: Failure::from_code(code),
            called: call(0),
            recorded: call(1),
        })
    }
}
