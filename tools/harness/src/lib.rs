//! The common ground of demo, bench, experiments and kernels: a lab with files and programs, an end on signals, the
//! events of `outlive serve`, plots, and the sources of programs that others wrote.

#![forbid(unsafe_code)]

pub mod archive;
pub mod direct_return;
pub mod events;
pub mod janitor;
pub mod machine;
pub mod nginx;
pub mod plot;
pub mod pool;
pub mod quantile;
pub mod redis;
pub mod task;
pub mod testbed;
pub mod transfer;
pub mod wrk;
