//! Words by which a script knows a warning.

use serde::{Serialize, Serializer};

macro_rules! codes {
    ($($name:ident, $word:literal, $means:literal;)*) => {
        /// What did not work, and does not stop us.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $means] $name,)*
        }

        impl Code {
            /// All of them: the word, and what it means.
            pub const ALL: &[(&str, &str)] = &[$(($word, $means),)*];

            /// The word, as JSON and metrics have it.
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
    AddressTaken, "address_taken", "An address of --address-device had been taken from this host, and is up again.";
    AddressShared, "address_shared", "Another service of another name has one of the addresses, and this logger: two hosts may answer its clients (--shared-address).";
    AddressesWereUp, "addresses_were_up", "The addresses were up before the service was: clients that spoke meanwhile were reset (--address-device prevents that).";
    AwaitsGrant, "awaits_grant", "This host may not serve yet: the logger does not answer, or does not grant it.";
    ChildQuarantined, "child_quarantined", "A child of the server has crashed again and again, and is not begun again (--north).";
    ClientsNotTold, "clients_not_told", "At the end of the service clients may not have been sent all, nor reset.";
    EndedInReplay, "ended_in_replay", "The server ended by itself while its record was replayed (--north).";
    EventsLost, "events_lost", "The kernel had no room for some of its events, because serve was stopped or very busy: all connections were looked at instead.";
    HistoryNotWritten, "history_not_written", "Events cannot be written to the history: a full disk, or no such directory. The service goes on; the next try comes with the next event.";
    ImageNotSent, "image_not_sent", "The logger has begun anew, and cannot be given the last checkpoint again.";
    ImageNotStarted, "image_not_started", "No server could be made of the last checkpoint: its state begins anew.";
    InheritanceUnknown, "inheritance_unknown", "The logger has connections of an earlier life, and does not say which: they are lost.";
    KeysNotRead, "keys_not_read", "The key file has changed and cannot be read: the old keys stay in use.";
    LeaseNotProlonged, "lease_not_prolonged", "The logger does not answer this host, which is silent when its lease is over.";
    LoggerNotEnded, "logger_not_ended", "A logger process of this host was killed, and does not end: it waits in the kernel. Another one is in its place.";
    LoggerRefuses, "logger_refuses", "A logger cannot be reached, or does not take this service.";
    MainProcessLeft, "main_process_left", "With --crash-on=main: the main process has ended and left others, whose deaths are not masked.";
    NameInUse, "name_in_use", "Another service of this name uses the logger: its connections are left to it.";
    NoCheckpoints, "no_checkpoints", "No checkpoints are made: CRIU cannot be used, or there is no room.";
    NoStatus, "no_status", "A question for the status could not be answered.";
    NoTakeover, "no_takeover", "No other host can take over, though the options seem to be meant for that.";
    NotRebuilt, "not_rebuilt", "With --north=prefer: the server cannot be rebuilt, and is served without a record.";
    NotSaidAgain, "not_said_again", "What a client lacks cannot be said again to its socket.";
    OldRecordPossible, "old_record_possible", "Which logger is in use could not be noted: after a restart of the host an older record may be taken.";
    ReplayDiverged, "replay_diverged", "The server did something else than its record says (--north).";
    ServesUnheard, "serves_unheard", "The logger does not answer, and this host serves nonetheless, as it was begun by `outlive serve`.";
    ServerNotEnded, "server_not_ended", "Processes of the dead server were killed, and do not end: they wait in the kernel, and the next life of the server waits for them.";
    SettingNotChanged, "setting_not_changed", "A setting of the loopback that a recovery needs was put back by somebody, and cannot be changed again: clients on this host may be lost.";
    SocketNotMade, "socket_not_made", "No socket can be made for a connection (--north).";
    SocketsLeft, "sockets_left", "Sockets of the dead server cannot be removed: their connections may be lost.";
    StateLost, "state_lost", "The server's state is lost, and so are its connections (--north).";
    StepFailed, "step_failed", "A step of the service failed, and is tried again. Again and again: report it.";
    ThreadsNotAwaited, "threads_not_awaited", "Threads of the server beside its first one are not waited for any more: its record may not be replayable from here on (--north).";
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}
