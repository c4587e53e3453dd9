//! The states of a TCP socket, by the kernel's numbers.

/// State of a TCP socket (RFC 9293, section 3.3.2), without CLOSED: no socket in the kernel's tables is CLOSED.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpState {
    /// Open: data flows in both directions.
    Established,
    /// A SYN was sent.
    SynSent,
    /// A SYN was received and answered.
    SynReceived,
    /// Our FIN was sent and is not yet acknowledged.
    FinWait1,
    /// Our FIN was acknowledged; the peer has not closed.
    FinWait2,
    /// Both sides closed; waits for old segments to die out.
    TimeWait,
    /// The peer has closed, we have not.
    CloseWait,
    /// Our FIN, sent after the peer's, is not yet acknowledged.
    LastAck,
    /// Waits for connections.
    Listen,
    /// Both sides sent a FIN at the same time; ours is not yet acknowledged.
    Closing,
}

impl TcpState {
    /// From the kernel's number (`include/net/tcp_states.h`); `None` for CLOSED and for
    /// numbers that are not TCP states.
    pub(crate) fn from_kernel(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Established,
            2 => Self::SynSent,
            // 12 is TCP_NEW_SYN_RECV: the same to everybody outside the kernel.
            3 | 12 => Self::SynReceived,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            _ => return None,
        })
    }
}
