//! Options of `outlive send` and `outlive receive`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use bulk::sender::CarrierChoice;
use clap::{Args, ValueEnum, value_parser};

use crate::units;

/// Options of `outlive send`.
#[derive(Debug, Args)]
pub(crate) struct Send {
    /// Files, directories, block devices or `-` (standard input), and behind them the receivers, as HOST:PORT or
    /// HOST:PORT/NAME
    ///
    /// NAME is the path below the receiver's directory [default: the name of the file or directory]; standard input
    /// and several receivers of one file may have one, several files may not. A file called like a receiver is written
    /// ./NAME.
    #[arg(value_name = "PATH... HOST:PORT[/NAME]", required = true, num_args = 1..)]
    pub(crate) sources_and_receivers: Vec<String>,
    /// File whose first key the receivers accept (see `outlive key`)
    #[arg(long, value_name = "FILE", help_heading = "Receivers")]
    pub(crate) key_file: PathBuf,
    /// How long a receiver that is gone is waited for
    ///
    /// The transfer goes on when the receiver is back. Of standard input no byte can be sent a second time.
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = units::duration, help_heading = "Receivers")]
    pub(crate) retry: Duration,
    /// A receiver without an answer for this long is gone
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration, help_heading = "Receivers")]
    pub(crate) peer_timeout: Duration,
    /// Most bytes in a second, such as 20MB, at least 100kB a receiver [default: as fast as network and receivers]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, help_heading = "Network")]
    pub(crate) rate: Option<u64>,
    /// Yield to other traffic and other programs: at most 15 ms of queue in the network, lowest priority
    #[arg(long, help_heading = "Network")]
    pub(crate) background: bool,
    /// Do not send parts that a file of the same name has already
    ///
    /// The receiver reads its file, and both ends compare hashes of parts at the same positions. A file of the same
    /// size and time of change is compared anyway.
    #[arg(long, help_heading = "Network")]
    pub(crate) delta: bool,
    /// How the data travels
    #[arg(long, value_enum, default_value = "auto", help_heading = "Network")]
    pub(crate) carrier: CarrierName,
    /// Most TCP connections for the data of a file, where the data travels by TCP
    ///
    /// Several connections are faster where packets are lost. With --background there is one.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = value_parser!(u8).range(1..=16), help_heading = "Network")]
    pub(crate) connections: u8,
    /// Print events as JSON, one event per line
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// How the data travels.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum CarrierName {
    /// by UDP; where no UDP passes, by TCP
    Auto,
    /// by UDP, on the port of the receiver
    Udp,
    /// by TCP
    Tcp,
}

impl From<CarrierName> for CarrierChoice {
    fn from(name: CarrierName) -> Self {
        match name {
            CarrierName::Auto => Self::Auto,
            CarrierName::Udp => Self::Datagrams,
            CarrierName::Tcp => Self::Stream,
        }
    }
}

/// Options of `outlive receive`.
#[derive(Debug, Args)]
pub(crate) struct Receive {
    /// Directory in which files appear
    pub(crate) directory: PathBuf,
    /// Address and port that senders connect to, by TCP and by UDP
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, help_heading = "Senders")]
    pub(crate) listen: SocketAddr,
    /// File of the keys of the senders (see `outlive key`)
    #[arg(long, value_name = "FILE", help_heading = "Senders")]
    pub(crate) key_file: PathBuf,
    /// End when a file or a directory was stored, none is unfinished, and no sender is connected
    #[arg(long, help_heading = "Senders")]
    pub(crate) once: bool,
    /// Most transfers at once
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 64,
        help_heading = "Senders"
    )]
    pub(crate) transfers: usize,
    /// Most bytes of a file, such as 100GB [default: as many as there is space]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, help_heading = "Files")]
    pub(crate) limit: Option<u64>,
    /// Most bytes of all files in DIRECTORY, unfinished ones with them [default: as many as there is space]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, help_heading = "Files")]
    pub(crate) quota: Option<u64>,
    /// Write a file to the disk before its sender hears that the file is stored (fsync)
    #[arg(long, help_heading = "Files")]
    pub(crate) durable: bool,
    /// Refuse a file whose name is taken [default: the file replaces the older file]
    #[arg(long, help_heading = "Files")]
    pub(crate) no_replace: bool,
    /// Remove the part of a file that nobody has gone on with for so long
    #[arg(long, value_name = "TIME", default_value = "168h", value_parser = units::duration, help_heading = "Files")]
    pub(crate) keep_partial: Duration,
    /// Print events as JSON, one event per line
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}
