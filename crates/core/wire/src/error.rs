//! Why a byte string is not a packet that this crate reads.

/// A packet that cannot be read as TCP over IPv4 or IPv6. The peer's fault or simply other
/// traffic, never the caller's misuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes are there than the headers announce.
    #[error("the packet is cut short: {needed} bytes are needed, {available} are there")]
    Truncated {
        /// Bytes that the header needs or announces.
        needed: usize,
        /// Bytes that are there.
        available: usize,
    },
    /// The version field of the IP header is neither 4 nor 6.
    #[error("IP version {0} is neither 4 nor 6")]
    UnknownVersion(u8),
    /// The IPv4 header length field is below five words, or the total length is below the header.
    #[error("the IPv4 lengths contradict each other: header {header_len}, total {total_len}")]
    BadIpLength {
        /// Header length, in bytes.
        header_len: usize,
        /// Total length, in bytes.
        total_len: usize,
    },
    /// A fragment (IPv4: an offset or "more fragments"; IPv6: a fragment header). The host reassembles fragments for
    /// TCP; a view of one fragment would be wrong.
    #[error("the packet is an IP fragment")]
    Fragment,
    /// An IPv6 extension header (other than a fragment header) stands before the transport header. The value is the
    /// number in the "next header" field.
    #[error("IPv6 extension header {0} stands before the transport header")]
    ExtensionHeader(u8),
    /// The transport protocol is not TCP. The value is the protocol number.
    #[error("transport protocol {0} is not TCP")]
    NotTcp(u8),
    /// The TCP data offset is below five words. The value is the header length in bytes.
    #[error("the TCP data offset says a header of {0} bytes, below the minimum of 20")]
    BadDataOffset(usize),
}
