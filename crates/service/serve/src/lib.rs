//! A protected service: the work of `outlive serve`, and requests to a running `serve`.
//!
//! [`Service`] owns everything and runs a single loop. The loop receives deaths, listening sockets of the server,
//! messages of the logger and signals, informs [`recovery::Recovery`], and executes the resulting actions (the module
//! `executor`). `recovery` decides the fate of each connection; the service decides about loggers, standby and
//! checkpoints. [`control`] answers `outlive status` and `outlive events` over a socket; [`preflight`] reports before
//! the setup why a service could not be protected; [`clean`] removes the remains of a killed `serve`.

#![forbid(unsafe_code)]

mod adoption;
pub mod clean;
mod clock;
mod config;
pub mod control;
mod counters;
mod error;
mod error_codes;
pub mod event_log;
mod events;
mod executor;
mod image_prefetch;
mod images;
mod instance;
mod known_servers;
mod lease_client;
mod link;
mod logger;
mod logger_client;
mod metrics;
mod north;
mod options;
mod prefetch;
pub mod preflight;
mod read_ahead;
mod records;
mod replica;
mod rundir;
mod service;
mod setup;
mod size;
mod standby_eligibility;
mod status;
mod sysctl_backup;

pub use checkpoint::sandbox::{
    Purpose as RoomPurpose, SANDBOX_COMMAND as ROOM_VERB, run as run_room,
};
pub use config::{CheckpointConfig, LinkConfig, LoggerLimits, OnLoggerLoss, ServeConfig, Verify};
pub use counters::EventCounters;
pub use error::{Fault, ServeError};
pub use events::{
    Awaits, COMMON, Code, Event, EventRecord, FORMAT, FormerInstance, JSON_VERSION, KINDS, Kind,
    Priority, Request, Requester, begins,
};
pub use logger_client::LOGGER_VERB;
pub use rundir::RunDir;
pub use service::{Ending, History, Service, Signals};
pub use setup::host_memory;
pub use south_model::CrashOn;
pub use standby_eligibility::give_up;
pub use status::{
    CheckpointStatus, CommitStatus, ConnectionStatus, RecordStatus, ReplicaStatus, Status,
};
