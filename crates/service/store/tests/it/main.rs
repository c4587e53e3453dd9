//! Stores against the real programs: redis-server and memcached.

#![allow(missing_docs)]

mod failures;
mod memcached;
mod probe;
mod restart;
mod server;
mod stores;
mod valkey;
