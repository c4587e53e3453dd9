//! Words by which a script knows an error.

use dataplane::DataplaneError;
use supervise::{CgroupError, DestroyError, mounts::MountError};

use crate::error::ServeError;

impl ServeError {
    /// The word that `--json` has beside the message, which may change.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoCapability(_)
            | Self::Dataplane(DataplaneError::NotPermitted { .. })
            | Self::Mount(MountError::NotPermitted { .. })
            | Self::Destroy(DestroyError::NotPermitted) => "not_permitted",
            Self::NoAddress => "no_address",
            Self::Wildcard(_) => "wildcard_address",
            Self::TooManyAddresses { .. } => "too_many_addresses",
            Self::NotLocal { .. } => "address_not_here",
            Self::NoDevice(_) => "no_device",
            Self::AddressInUse { .. } => "address_of_another_host",
            Self::AddressHere(_) => "address_is_the_hosts",
            Self::SocketsLeft(_) => "sockets_left",
            Self::SeveralLoggers => "several_loggers",
            Self::NoHostNumber => "no_hardware_address",
            Self::Metrics { .. } => "metrics_not_shown",
            Self::InUse { .. } => "port_in_use",
            Self::AlreadyServed { .. } => "already_served",
            Self::NotAdopted { .. } => "not_taken_over",
            Self::OtherOptions { .. } => "other_options",
            Self::OtherLayout { .. } => "other_version",
            Self::BadName(_) => "bad_name",
            Self::NoService { .. } => "no_service",
            Self::RunDir { .. } => "run_dir",
            Self::NotWrappable(_) | Self::NotWrapped => "library_not_preloaded",
            Self::NotRecorded => "not_recorded",
            Self::NotReplayable { .. } => "not_replayable",
            Self::FirstStart { .. } => "server_ended",
            Self::Spawn(_) => "command_not_started",
            Self::Criu(_) | Self::Room(_) => "criu",
            Self::Cgroup(CgroupError::Occupied { .. }) => "server_runs",
            Self::Cgroup(_) => "cgroup",
            Self::Mount(_) => "mount",
            Self::Stop(_) => "server_not_stopped",
            Self::Destroy(_) => "sockets_not_destroyed",
            Self::Dataplane(DataplaneError::Setting { .. }) => "setting_not_changed",
            Self::Dataplane(_) => "kernel",
            Self::Logger(_) | Self::LoggerClosed | Self::LoggerMayBeOlder => "logger",
            Self::AddressClaimed(_) | Self::AddressServed { .. } => "address_of_another_service",
            Self::LoggerUnreachable { .. } => "logger_unreachable",
            Self::StillServed(_) => "still_served",
            Self::StillWritten(_) => "still_written",
            Self::NoLogger(_) => "logger_refuses",
            Self::Keys(_) => "key_file",
            Self::NeverGranted(_) => "never_granted",
            Self::NotKnown(_) => "not_known",
            Self::LoggerProtocol(_) | Self::NoCommonVersion(_) => "logger_protocol",
            Self::Fabricate(_) => "packet_not_made",
            Self::System { .. } => "system",
        }
    }
}
