//! A logger with a log link: its core among datagrams that are lost, doubled, reordered, cut, forged
//! and garbled; and the service itself, over sockets.

mod core;
mod durable;
mod heads;
mod host;
mod inherit;
mod lives;
mod progress;
mod service;
