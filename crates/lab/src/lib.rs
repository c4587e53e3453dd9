//! Test hosts in network namespaces, and the ways to break them
