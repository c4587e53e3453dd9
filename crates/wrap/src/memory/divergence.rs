//! Why a replay was given up.

use std::{fmt, sync::atomic::Ordering};

use wrap_abi::{Call, layout::Failure};

use super::Memory;

/// Why a replay was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Divergence {
    /// In which process.
    pub process: u32,
    /// Where in its stream, bytes.
    pub at: u64,
    /// What went wrong; `None`: something that this version does not know.
    pub failure: Option<Failure>,
    /// What the server called there.
    pub called: Option<Call>,
    /// What the record has.
    pub recorded: Option<Call>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.failure {
            Some(Failure::OtherCall) => "it made another call than then",
            Some(Failure::OtherDescriptor) => {
                "it made the call for another descriptor, or another file"
            }
            Some(Failure::BadRecord) => "the record cannot be read",
            Some(Failure::OtherOutput) => "it said something else than then",
            Some(Failure::OtherClock) => "it read its clocks more often than then",
            Some(Failure::DescriptorTaken) => "a connection's descriptor is taken",
            Some(Failure::OtherLength) => "it was given more than it asked for",
            Some(Failure::OtherFile) => "a file that it reads or writes is not what it was",
            Some(Failure::PortTaken) => {
                "a port that it listens on, and that the kernel had chosen, is another program's now"
            }
            Some(Failure::NotSupported) => "it does what cannot be replayed",
            Some(Failure::OtherProgram) => "it runs another program",
            Some(Failure::LockTaken) => {
                "a file that it had locked another program has locked by now"
            }
            Some(Failure::OtherVersion) => "its record was made by another version of outlive",
            Some(Failure::NamedSocket) => "the server has a socket with a name in the file system",
            Some(Failure::SharedMemory) => {
                "the server writes to a file that is in its memory (MAP_SHARED)"
            }
            Some(Failure::Fifo) => "the server has opened a FIFO",
            Some(Failure::HelperChanges) => "the server's threads change files by themselves",
            Some(Failure::HelperRuns) => {
                "a thread of the server does not come to rest, as it had then"
            }
            Some(Failure::HelperIsSilent) => {
                "a thread of the server does not say again what it had said"
            }
            None => "it did not say why",
        };
        write!(
            f,
            "{what}, in process {} after {} bytes of its record",
            self.process, self.at
        )?;
        match (self.called, self.recorded) {
            (Some(called), Some(recorded)) => write!(f, " ({called:?}; then it was {recorded:?})"),
            (Some(called), None) => write!(f, " ({called:?})"),
            _ => Ok(()),
        }
    }
}

impl Memory {
    /// Why the replay was given up; `None`: it was not.
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
