//! The parameters that both ends agree on in the handshake.

use super::{MAX_WINDOW_SCALE, Options, OptionsBuffer, TcpOption, Timestamps};

/// The options of a SYN or SYN-ACK that shape the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SynOptions {
    /// Maximum segment size, in bytes; `None` if not offered or 0, which TCP ignores.
    pub mss: Option<u16>,
    /// Window scale, at most [`MAX_WINDOW_SCALE`].
    pub window_scale: Option<u8>,
    /// Whether selective acknowledgements are permitted.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
}

impl SynOptions {
    /// Reads the option bytes of a SYN. As in the kernel, the last of several options of one kind counts, and a
    /// malformed option hides the options behind, but not the options before.
    #[must_use]
    pub fn parse(options: &[u8]) -> Self {
        let mut syn = Self::default();
        for option in Options::new(options).map_while(Result::ok) {
            match option {
                TcpOption::MaxSegmentSize(mss) if mss != 0 => syn.mss = Some(mss),
                TcpOption::WindowScale(shift) => syn.window_scale = Some(shift),
                TcpOption::SackPermitted => syn.sack_permitted = true,
                TcpOption::Timestamps { value, echo } => {
                    syn.timestamps = Some(Timestamps { value, echo });
                }
                _ => {}
            }
        }
        syn
    }

    /// Writes the options for a SYN, in the order and alignment that Linux uses: a multiple of four
    /// bytes, which [`SynOptions::parse`] reads back as `self`. (A window scale above
    /// [`MAX_WINDOW_SCALE`] is written as that.)
    #[must_use]
    pub fn emit(&self) -> OptionsBuffer {
        let mut buffer = OptionsBuffer::new();
        let mut push = |option| {
            let fits = buffer.push(&option).is_ok();
            debug_assert!(fits, "all four with their padding are 20 bytes");
        };
        if let Some(mss) = self.mss {
            push(TcpOption::MaxSegmentSize(mss));
        }
        if self.sack_permitted != self.timestamps.is_some() {
            push(TcpOption::NoOperation);
            push(TcpOption::NoOperation);
        }
        if self.sack_permitted {
            push(TcpOption::SackPermitted);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            push(TcpOption::Timestamps { value, echo });
        }
        if let Some(shift) = self.window_scale {
            push(TcpOption::NoOperation);
            push(TcpOption::WindowScale(shift.min(MAX_WINDOW_SCALE)));
        }
        buffer
    }
}
