//! The programs in the kernel, run on packets (`BPF_PROG_TEST_RUN`) beside the pure model, `south-model`.
//!
//! Every step goes through both; verdict, packet, flows, mirror frames, events and counters must be
//! equal after each step ([`harness::Both`]). The death latch sits on tracepoints, which have no
//! test run: real processes and real sockets test the latch. All tests need root.

mod harness;

mod balance;
mod control;
mod digest;
mod egress;
mod fuzz;
mod heads;
mod ingress;
mod instructions;
mod jumbo;
mod latch;
mod lease;
mod lib_headers;
mod link;
mod loading;
mod lost;
mod mirror;
mod objects;
mod splice;
mod stack;
mod together;
mod waking;
