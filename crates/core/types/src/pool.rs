//! Ideas of a pool of servers behind one address.

/// How connections are spread over the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum TableKind {
    /// Maglev hashing (Eisenbud et al., NSDI 2016): a change of a member moves few connections of the other members.
    Maglev,
    /// The hash modulo the number of members, as in the paper (TRODS 2.1): a change moves almost all connections.
    Modulo,
}

/// Which validators of an object must be equal on two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum VersionCheck {
    /// The strong entity tag, or `Last-Modified` if a response has no strong tag; the length.
    Etag,
    /// `Last-Modified` and the length: for servers with different forms of entity tags.
    Modified,
    /// The length.
    Length,
    /// Nothing: the operator says that all servers have the same bytes.
    Off,
}

/// How packets reach members in other network segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Encapsulation {
    /// In UDP.
    Udp,
}
