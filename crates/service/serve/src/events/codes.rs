//! Words by which a script knows a warning.

use serde::{Serialize, Serializer};

macro_rules! codes {
    ($($name:ident, $word:literal, $means:literal;)*) => {
        /// A failure that does not end the service.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $means] $name,)*
        }

        impl Code {
            /// All codes: word and meaning.
            pub const ALL: &[(&str, &str)] = &[$(($word, $means),)*];

            /// The word in JSON and metrics.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

codes! {
    AddressTaken, "address_taken", "An address of --address-device had been removed from this host, and is up again.";
    AddressShared, "address_shared", "Another service with another name has one of the addresses, at the same logger: two hosts may answer clients (--shared-address).";
    AddressesWereUp, "addresses_were_up", "The addresses were up before the service: clients that sent meanwhile were reset (--address-device prevents that).";
    AwaitsGrant, "waiting_for_grant", "This host may not serve yet: the logger does not answer, or does not grant the service.";
    ChildQuarantined, "child_quarantined", "A child of the server has crashed again and again, and is not started again (--stateful).";
    ClientsNotTold, "clients_not_closed", "The service ended, and clients may not have got all data, nor a reset.";
    EndedInReplay, "ended_in_replay", "The server exited by itself during the replay of its record (--stateful).";
    EventsLost, "events_lost", "The kernel had no room for some of its events, because serve was stopped or very busy: all connections were examined instead.";
    HistoryNotWritten, "history_not_written", "Events cannot be written to the history: a full disk, or no such directory. The service continues; the next try comes with the next event.";
    ImageNotPrefetched, "checkpoint_not_prefetched", "A standby has no space for the last checkpoint: a takeover would have to fetch it, and may fail.";
    ImageNotSent, "checkpoint_not_uploaded", "The logger has restarted without its records, and cannot be sent the last checkpoint again.";
    ImageNotStarted, "checkpoint_not_restored", "No server could be made from the last checkpoint; after three attempts, or with a damaged image, its state is lost.";
    InheritanceUnknown, "inheritance_unknown", "The logger has connections of an earlier life, and does not list them: these connections are lost.";
    KeysNotRead, "keys_not_read", "The key file has changed and cannot be read: the old keys stay in use.";
    LeaseNotProlonged, "lease_not_renewed", "The logger does not answer this host: the host falls silent when its lease ends.";
    LoggerNotEnded, "logger_not_ended", "A logger process of this host was killed, and does not end: it waits in the kernel. Another process replaces it.";
    LoggerRefuses, "logger_refuses", "A logger cannot be reached, or does not accept this service.";
    MainProcessLeft, "main_process_left", "With --crash-on=main: the main process has ended and left other processes, whose deaths are not masked.";
    NameInUse, "name_in_use", "Another service of this name uses the logger, and keeps its connections.";
    NoCheckpoints, "no_checkpoints", "No checkpoints are made: CRIU cannot be used, or there is no room.";
    NoStatus, "no_status", "A status query could not be answered.";
    NoTakeover, "no_takeover", "No other host can take over, although the options are meant for that.";
    NotRebuilt, "not_rebuilt", "With --stateful=prefer: the server cannot be rebuilt, and runs without a record.";
    NotSaidAgain, "output_not_resent", "Output that a client lacks cannot be written to its socket again (--stateful).";
    OldRecordPossible, "old_record_possible", "The logger in use could not be noted: after a restart of the host an older record may be used.";
    ReplayDiverged, "replay_diverged", "The server deviated from its record (--stateful).";
    ServesUnheard, "serving_without_logger", "The logger does not answer, and this host serves nonetheless, because it was started by `outlive serve`.";
    ServerNotEnded, "server_not_ended", "Killed processes of the dead server do not end: they wait in the kernel, and the next server waits for them.";
    SettingNotChanged, "setting_not_changed", "A setting of the loopback that a recovery needs was changed back, and cannot be changed again: clients on this host may be lost.";
    SocketNotMade, "socket_not_made", "No socket can be made for a connection (--stateful).";
    SocketsLeft, "sockets_left", "Sockets of the dead server cannot be removed: their connections may be lost.";
    StandbyOtherVersion, "standby_other_version", "The serving host records another version of determinants than this standby replays: a takeover loses the server's state and all connections (--stateful).";
    StateLost, "state_lost", "The server's state is lost, and so are its connections (--stateful).";
    StepFailed, "step_failed", "A step of the service failed, and is tried again. Report repeated failures.";
    ThreadsNotAwaited, "threads_not_awaited", "Threads of the server other than the first are no longer waited for: its record may not be replayable from here on (--stateful).";
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}
