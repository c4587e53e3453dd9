//! The programs of a member of a pool, run on packets beside the pure model, [`objects::plane`].
//!
//! Each step goes through both. Verdict, packet, connections, packets that leave besides, copies for user space, events
//! and counters must be equal after each step ([`lab::Lab`]).

mod chunks;
mod egress;
mod encapsulation;
mod fuzz;
mod handshake;
mod ingress;
mod inputs;
mod lab;
mod offloads;
mod processors;
mod queue;
mod store;
mod turns;
