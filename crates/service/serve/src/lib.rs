//! One protected service: what `outlive serve` does, and what is asked of it while it runs.
//!
//! [`Service`] owns everything and runs one loop: it hears of deaths, of the server's listening,
//! of the logger and of signals, tells [`recovery::Recovery`], and carries out what that answers
//! (the module `act`). `recovery` decides what becomes of each connection; the service decides about its loggers, its
//! standby and its checkpoints. [`control`] answers `outlive status`
//! and `outlive events` over a socket; [`preflight`] says before anything is set up why a service
//! could not be protected; [`clean`] removes what a killed `serve` left.

#![forbid(unsafe_code)]

mod act;
mod adopting;
mod announcing;
mod changes;
pub mod clean;
mod clock;
mod config;
pub mod control;
mod error;
mod error_codes;
pub mod event_log;
mod events;
mod images;
mod instance;
mod keeper;
mod known_servers;
mod leasing;
mod link;
mod logger;
mod logger_client;
mod north;
mod numbers;
mod options;
mod own_addresses;
pub mod preflight;
mod read_ahead;
mod records;
mod replica;
mod rundir;
mod service;
mod setup;
mod size;
mod status;
mod tally;
mod together;

pub use checkpoint::sandbox::{
    Purpose as RoomPurpose, SANDBOX_COMMAND as ROOM_VERB, run as run_room,
};
pub use config::{CheckpointConfig, LinkConfig, LoggerLimits, OnLoggerLoss, ServeConfig, Verify};
pub use error::{Fault, ServeError};
pub use events::{
    Asker, Awaits, COMMON, Code, FORMAT, FormerLife, Happening, JSON_VERSION, KINDS, Kind,
    Priority, Report, Request, begins,
};
pub use leasing::give_up;
pub use logger_client::LOGGER_VERB;
pub use rundir::RunDir;
pub use service::{Ending, History, Service, Signals};
pub use setup::host_memory;
pub use south_model::CrashOn;
pub use status::{
    CheckpointStatus, CommitStatus, ConnectionStatus, RecordStatus, ReplicaStatus, Status,
};
pub use tally::Tally;
