//! Tests of a logger with a log link: the core with datagrams that are lost, doubled, reordered, cut, forged and
//! garbled; and the service, over sockets.

mod core;
mod durable;
mod heads;
mod host;
mod inherit;
mod lives;
mod progress;
mod service;
