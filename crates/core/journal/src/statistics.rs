//! Counters of recorded and refused segments.

/// The bytes that arrived in one direction, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteCounts {
    /// Bytes that were new, and were recorded.
    pub recorded: u64,
    /// Bytes that were known already, equal or not. The first that was recorded stays, as in the
    /// receive queue of a TCP.
    pub duplicate: u64,
    /// Duplicate bytes that differ from the recorded bytes.
    pub conflicting: u64,
    /// Bytes outside the record: before the beginning (of a dropped request, or of the keepalive kind of RFC 9293,
    /// 3.8.4) or after the client's FIN.
    pub outside: u64,
}

impl ByteCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.recorded += other.recorded;
        self.duplicate += other.duplicate;
        self.conflicting += other.conflicting;
        self.outside += other.outside;
    }
}

/// Counters since the start of a journal, and the memory in use now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Connections that are known now.
    pub connections: usize,
    /// Known connections that are unprotected.
    pub unprotected: usize,
    /// Bytes of memory that the records hold now, without the parts of fixed size.
    pub held: u64,
    /// Bytes of memory that wait to be used again. Together with `held` never above the limit.
    pub idle: u64,
    /// Connections opened.
    pub opened: u64,
    /// Connections closed.
    pub closed: u64,
    /// Connections that became unprotected.
    pub became_unprotected: u64,
    /// Requests begun, without the first of each connection.
    pub turns: u64,
    /// Instream bytes.
    pub instream: ByteCounts,
    /// Outstream bytes.
    pub outstream: ByteCounts,
    /// FINs at another position than a recorded FIN, or before recorded bytes.
    pub conflicting_fins: u64,
    /// Segments refused because the connection was not known.
    pub refused_unknown: u64,
    /// Segments refused because the connection was, or thereby became, unprotected.
    pub refused_unprotected: u64,
    /// Segments refused because the sequence number was too far from the known numbers.
    pub refused_implausible: u64,
}

impl Statistics {
    /// Counts a connection that was given up, if the connection was protected.
    pub(crate) fn gave_up(&mut self, was_protected: bool) {
        self.unprotected += usize::from(was_protected);
        self.became_unprotected += u64::from(was_protected);
    }
}

/// How many bytes of two slices of the same length differ.
pub(crate) fn differing(one: &[u8], other: &[u8]) -> u64 {
    if one == other {
        return 0;
    }
    let differing = one.iter().zip(other).filter(|(a, b)| a != b).count();
    crate::len64(differing)
}
