//! TCP, IPv4 and IPv6 on the wire: views, options, sequence numbers, checksums
