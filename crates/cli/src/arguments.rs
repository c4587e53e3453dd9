//! The commands and options of `outlive`.

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::units::{self, Addresses};

mod balance;
mod bulk;
pub(crate) mod lab;
mod make;
mod objects;

pub(crate) use balance::{Balance, BalanceMember, BalanceStatus, BalanceVerb};
pub(crate) use bulk::{Receive, Send};
pub(crate) use make::{Make, Speculate, SpeculateRun};
pub(crate) use objects::Objects;

/// TCP connections that outlive the processes that serve them.
#[derive(Debug, Parser)]
#[command(name = "outlive", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a server and keep client connections across crashes
    ///
    /// outlive starts COMMAND and protects the connections to this server. When the server crashes, outlive starts
    /// COMMAND again and carries every open connection over to the new process. Neither the clients nor the server are
    /// changed.
    ///
    /// A logger process on this host keeps a record of the bytes that clients sent. This record survives the death of
    /// the server and restarts of the server, but not the death of this host. With --logger, another machine keeps the
    /// record, and acknowledgements to clients cover only bytes that are in this record.
    Serve(Box<Serve>),
    /// Stand by for another host, and take over its service with all connections
    ///
    /// The options are those of `outlive serve` on the other host. --logger and --address-device are required: the
    /// logger grants each host the permission to serve, and the addresses move with the service. A host whose lease
    /// has expired can send nothing for the service when this host begins to serve.
    Standby(Box<Serve>),
    /// Hand a service over to its standby; this host becomes the standby
    Switchover(OfService),
    /// Restart the server of a service and keep all its connections
    ///
    /// Use this command for another version of the server, or for another configuration that the server reads at its
    /// start. Clients see a pause. outlive ends the server by SIGKILL, as a crash would: the connections are protected
    /// against a crash. The options of `outlive serve` and the command of the server stay the same.
    Restart(OfService),
    /// Show the services, balancers and members of pools on this host
    Status(Status),
    /// Show the events of a service, a balancer or a member of a pool
    Events(Events),
    /// Show the events of a service on disk, also from earlier runs of `outlive serve`
    ///
    /// The history also names the user behind each switchover and each restart.
    History(ShowHistory),
    /// Check whether this kernel, these addresses and this command can be protected
    ///
    /// The options are those of `outlive serve`, also from a file (--config). The questions are those that `outlive
    /// serve` asks before its start. A negative answer gives the reason. The exit status is the status with which
    /// `outlive serve` would end. A question about an option that is not given is left out.
    Check(Box<Check>),
    /// Remove the remains of an `outlive serve` that was killed, or of a balancer
    Clean(Clean),
    /// Print a new key for a key file, by which a service and a logger trust each other
    ///
    /// The output is one line of a key file: (umask 077; outlive key > keys). Both hosts need the same file.
    ///
    /// A program sends with the first key of the file, and accepts every key of the file. To change keys without an
    /// interruption, add the new line to both files, then make the new line the first, then remove the old line. Both
    /// programs read a changed file again.
    Key(Key),
    /// Keep the records of services that run on other machines
    ///
    /// The logger keeps a record of the bytes that clients send to services on other machines. Every byte that a
    /// client knows to be received is in this record. The record outlives the loss of the processes on these machines.
    ///
    /// Services connect with `outlive serve --logger ADDRESS:PORT --key-file FILE`. TCP and UDP of the port must reach
    /// the logger. The owner of a key in the key file may read and write records. The datagrams between a service and
    /// its logger are authenticated, but not secret: use a private network.
    Logger(Logger),
    /// Serve objects as a member of a pool; downloads of a dead member go on here
    ///
    /// outlive starts COMMAND, an ordinary web server, on each host of a pool. All have the same files. `outlive
    /// balance` spreads the connections over the members. When a member dies, in the middle of downloads, the other
    /// members go on with these at the right byte. Neither the clients nor the servers are changed, and nothing is
    /// logged: the state of a download is in the client's own packets.
    ///
    /// HTTP/1.1 without TLS, GET and HEAD. Clients need TCP timestamps and SACK. Other connections are served, too, and
    /// are not protected.
    Objects(Box<Objects>),
    /// Balance the connections of a pool of servers over its members
    ///
    /// Clients connect to one address. The balancer hands the packets of each connection to a member of the pool, and
    /// keeps no state of connections. Members are web servers on the same network as the balancer, which have the
    /// service's address, too, and answer the clients directly. Members connect to --listen, and send only by leases: a
    /// member that does not renew its lease falls silent, and is declared dead when it is silent for certain.
    ///
    /// When this command ends, packets go to the members of the last table for the length of a lease. The next
    /// `outlive balance` of this name goes on with that table. `outlive clean` takes everything down.
    Balance(Balance),
    /// Send files to other hosts, fast, and checked
    ///
    /// The receivers run `outlive receive`. A file appears there under its name when it is whole. After a failure of
    /// either end the next attempt sends the missing parts alone. Holes of a file are not sent. Several receivers get a
    /// file at the same time. The data is encrypted, and travels by UDP on the port of the receiver.
    Send(Send),
    /// Receive files from other hosts
    ///
    /// Files appear below DIRECTORY, and nowhere else: no name leads through a link. Until a file is whole, its part is
    /// in DIRECTORY/.outlive-partial. The owner of a key in the key file may write and replace files there.
    Receive(Receive),
    /// Run make in the background on every save, and show the result on request
    ///
    /// `outlive make --watch` does the work of `make` on every save. This work is concealed: no file changes, and
    /// nothing is printed. `outlive make` shows the work that was done, finished or not, and does the rest. Without a
    /// watcher, `outlive make` is `make`.
    Make(Make),
    /// Run a command in isolation, and show its effects on files later
    ///
    /// The command begins at once, in the background. outlive keeps back all output and all changes to files until the
    /// commit (`outlive speculate commit`). Then all effects appear at once, in the order in which the command made
    /// the changes. A command that still runs goes on as if outlive had kept nothing back.
    ///
    /// These files count: this directory, the repository around this directory, /tmp, /var/tmp, $TMPDIR, and the
    /// caches of some tools.
    ///
    /// An operation that cannot be kept back (network, devices, changes elsewhere) waits for the commit. A commit is
    /// refused if something that the command has read has changed in the meantime.
    #[command(subcommand)]
    Speculate(Box<Speculate>),
    /// Test hosts on this machine, with faults by hand: kill, cut, lose, delay, power off
    ///
    /// A lab is a set of hosts, each in a network namespace of its own, with links that can be cut, slowed and made
    /// lossy. Programs on a host are real programs and see the files of this machine. Only the other hosts of the lab
    /// can reach the ports on which these programs listen. Nothing connects a lab with the world. Process numbers are
    /// those of this machine: `pgrep` on a host also shows processes of other hosts and labs, and `outlive lab kill`
    /// signals processes of the named host alone.
    ///
    /// A lab needs root. A small process in the background holds the lab until `outlive lab down`.
    #[command(subcommand)]
    Lab(lab::Lab),
    /// Show the version of this program, and the versions of its formats
    ///
    /// Programs on two hosts understand each other if each format that one of the programs writes is a format that the
    /// other program reads.
    Version(Version),
    /// Write the man pages of outlive and of each command
    Man(Man),
    /// Print the script by which a shell completes commands and options
    #[command(after_help = "\
Each shell looks for the script in a directory of its own:
  outlive completions bash > /usr/share/bash-completion/completions/outlive
  outlive completions zsh > /usr/local/share/zsh/site-functions/_outlive
  outlive completions fish > /usr/share/fish/vendor_completions.d/outlive.fish")]
    Completions(Completions),
    /// The logger process that `outlive serve` starts for itself
    #[command(name = serve::LOGGER_VERB, hide = true)]
    LoggerProcess(LoggerProcess),
    /// The first process of the namespaces in which `outlive serve` runs a server made from a checkpoint
    #[command(name = serve::ROOM_VERB, hide = true)]
    Room(Room),
}

#[derive(Debug, Args)]
pub(crate) struct Version {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Directory of the pages, such as /usr/local/share/man; created if missing, with man1, man5, man7 and man8 below
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell that reads the script
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Stateful {
    /// the server has no state, or no state that a client could miss
    Off,
    /// the server has state; a server that cannot be rebuilt is not protected, and `outlive serve` ends
    Require,
    /// rebuild the state if possible; a server that turns out not to be rebuildable is ended, and started again as
    /// with off
    Prefer,
}

impl Stateful {
    /// Is the state of the server to be rebuilt?
    pub(crate) fn is_wanted(self) -> bool {
        !matches!(self, Self::Off)
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Replay {
    /// from the beginning of the connection: the server executes earlier requests again
    Connection,
    /// from the last unanswered request: for servers that keep nothing between requests
    Request,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Verify {
    /// compare all output byte by byte; outlive then records all output, at a cost of memory and time
    Full,
    /// compare all output by a keyed hash in the kernel, and the first 4 KiB of each answer byte by byte. Where a
    /// server sends faster than 1.6 Gbit/s on a processor, only 64 bytes of each 32 KiB are compared in the rest of
    /// that connection
    Hash,
    /// compare the first 4 KiB of each answer
    Head,
    /// compare nothing
    Off,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum CrashOn {
    /// a crash is an end of the main process by a signal, or with a status other than 0. The death of another process
    /// is left to the parent of that process. This suits servers with a process for each session
    Main,
    /// as main, and the death of any process by a signal
    Signal,
    /// as signal, and the end of any process with a status other than 0
    AnyFailure,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Ack {
    /// send the acknowledgements of the server, each limited to the recorded bytes
    Basic,
    /// as basic, but an acknowledgement without data waits until all bytes that it acknowledges are recorded
    Lazy,
    /// as basic, and send one more acknowledgement for each acknowledgement of the logger
    Eager,
    /// as eager, but only if the client has sent nothing since
    Conditional,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum OutputCommit {
    /// output to clients
    Network,
    /// output to clients, and writes to files and pipes
    All,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LoggerLoss {
    /// connections go on, and would not survive a crash
    Unprotect,
    /// clients wait until the same logger answers again
    Hold,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Attach {
    /// TCX if the kernel has TCX (Linux 6.6), else clsact
    Auto,
    /// TCX
    Tcx,
    /// the clsact queueing discipline
    Clsact,
}

/// The directory of running services.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunDirectory {
    /// Directory of sockets, locks and private mounts (also: environment variable OUTLIVE_RUN_DIR)
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/outlive",
        env = "OUTLIVE_RUN_DIR",
        hide_env = true
    )]
    pub(crate) run_dir: PathBuf,
}

/// The directory of events that outlive `outlive serve`.
#[derive(Debug, Clone, Args)]
pub(crate) struct HistoryDirectory {
    /// Directory of the events on disk, for `outlive history`, at most 16 MiB for each service [default:
    /// $STATE_DIRECTORY, or /var/lib/outlive/history; with another --run-dir: none]
    #[arg(long, value_name = "DIR")]
    history: Option<PathBuf>,
}

/// The usual directory of the history.
const HISTORY: &str = "/var/lib/outlive/history";

impl HistoryDirectory {
    /// The directory of the history of services in this run directory.
    pub(crate) fn of(&self, run_dir: &Path) -> Option<PathBuf> {
        let usual = run_dir == Path::new("/run/outlive");
        self.history
            .clone()
            .or_else(|| usual.then(|| self.or_usual()))
    }

    pub(crate) fn or_usual(&self) -> PathBuf {
        let of_unit = || std::env::var_os("STATE_DIRECTORY").map(PathBuf::from);
        let given = self.history.clone().or_else(of_unit);
        given.unwrap_or_else(|| PathBuf::from(HISTORY))
    }
}

/// Options in a file.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigFile {
    /// TOML file of options; the command line wins
    ///
    /// The keys are the long names of the options, as in limit-total = "2GiB". The value of an option that can be
    /// repeated is a list. The command of the server is command = ["nginx", "-g", "daemon off;"]. Details are in
    /// outlive.toml(5).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl ConfigFile {
    /// The end of a message about wrong options.
    pub(crate) fn hint(&self) -> String {
        self.config.as_deref().map_or_else(String::new, config_hint)
    }
}

/// The end of a message about wrong options, some of which may be in this file.
pub(crate) fn config_hint(file: &Path) -> String {
    format!(" (options are also in {})", file.display())
}

/// Options of `outlive serve`, `standby` and `check`. The texts of the commands are those of [`Verb`].
#[derive(Debug, Clone, Args)]
pub(crate) struct Serve {
    /// Address and port that clients connect to, or a range of ports (10.0.0.1:20000-20100)
    ///
    /// Repeat this option for more addresses. Write an IPv6 address in brackets. A range suits the passive ports of an
    /// FTP server. A service has at most 1024 addresses, each port of a range counted.
    #[arg(long, value_name = "ADDRESS:PORT[-PORT]", required = true, value_parser = units::addresses, help_heading = "Addresses")]
    pub(crate) address: Vec<Addresses>,
    /// Network device on which outlive brings the addresses up
    ///
    /// outlive brings the addresses up when the connections are protected, tells the neighbours, and takes the
    /// addresses down at the end. Give this option if connections shall outlive a restart of this host (with
    /// --logger). If the system brings the addresses up, the kernel answers clients first, with resets.
    #[arg(long, value_name = "DEVICE", help_heading = "Addresses")]
    pub(crate) address_device: Option<String>,
    /// Bring the addresses up although another host on the link answers for the addresses
    ///
    /// A router with proxy ARP answers for all addresses. Without this option, outlive asks the neighbours for half a
    /// second, and refuses to start if a neighbour has one of the addresses.
    #[arg(long, requires = "address_device", help_heading = "Addresses")]
    pub(crate) take_address: bool,
    /// Another site has the same addresses for another server (NAT, anycast)
    ///
    /// With this option, the logger accepts both services. Without this option, a logger refuses this service if
    /// another service on another host has one of the addresses, and names the other service.
    #[arg(long, requires = "logger", help_heading = "Addresses")]
    pub(crate) shared_address: bool,
    /// Name of the service [default: made from the first address]
    #[arg(long, help_heading = "Service")]
    pub(crate) name: Option<String>,
    /// State of the server: record and rebuild the state, or ignore it
    ///
    /// A preloaded library records the input of the server's processes. After a crash, the restarted server replays
    /// this record, and has the same state again.
    #[arg(
        long,
        value_enum,
        default_value = "off",
        help_heading = "State of the server"
    )]
    pub(crate) stateful: Stateful,
    #[command(flatten)]
    pub(crate) bounding: Bounding,
    /// Part of each connection that the restarted server is given again
    #[arg(
        long,
        value_enum,
        default_value = "connection",
        help_heading = "Verification"
    )]
    pub(crate) replay: Replay,
    /// Part of the repeated output that is compared with the output that the client was sent
    ///
    /// With --stateful this option has no effect: a server with state itself compares all repeated output.
    #[arg(
        long,
        value_enum,
        default_value = "hash",
        help_heading = "Verification"
    )]
    pub(crate) verify: Verify,
    /// HTTP response fields whose values may differ in the repeated output, separated by commas
    #[arg(
        long,
        value_name = "FIELD",
        value_delimiter = ',',
        default_value = "Date",
        help_heading = "Verification"
    )]
    pub(crate) verify_ignore_header: Vec<String>,
    /// Deaths that are crashes; after a crash the whole server is started again
    #[arg(long, value_enum, default_value = "signal", help_heading = "Crashes")]
    pub(crate) crash_on: CrashOn,
    /// Time for which connections wait for a server that does not come back (ms, s, min, h)
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration, help_heading = "Crashes")]
    pub(crate) recovery_timeout: Duration,
    /// Number of deaths of the server in the replay of a connection after which this connection is reset
    #[arg(long, value_name = "DEATHS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Crashes")]
    pub(crate) quarantine_after: u32,
    /// Time that the server has to end when outlive is stopped (ms, s, min, h)
    ///
    /// With --address-device, clients then have the same time again to receive the data that the server has left for
    /// them.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration, help_heading = "Crashes")]
    pub(crate) stop_timeout: Duration,
    /// Largest record of the input of one connection (4KiB to 2GiB)
    ///
    /// A connection that exceeds this limit goes on unprotected. Units: bytes, KiB, MiB, GiB, kB, MB, GB.
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = units::bytes, help_heading = "Limits")]
    pub(crate) limit_per_connection: u64,
    /// Largest size of the records of all connections together [default: a quarter of this host's memory]
    ///
    /// The record of a server with state (--stateful) may have the same size again. Such a server goes on unprotected
    /// when this record is full. Units: bytes, KiB, MiB, GiB, kB, MB, GB.
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, help_heading = "Limits")]
    pub(crate) limit_total: Option<u64>,
    /// Size of the ring between kernel and logger (a power of two from 1MiB to 1GiB)
    #[arg(long, value_name = "BYTES", default_value = "32MiB", value_parser = units::bytes, help_heading = "Limits")]
    pub(crate) ring_size: u64,
    /// Largest number of protected connections at a time; further connections are served unprotected (at most 1048576)
    #[arg(long, value_name = "NUMBER", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1_048_576), help_heading = "Limits")]
    pub(crate) max_connections: u32,
    /// Keep the record on another machine, where `outlive logger` listens
    ///
    /// Repeat this option for more loggers, the best first: when a logger is lost, outlive tries the next. A service
    /// with a standby needs exactly one logger.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, requires = "key_file", help_heading = "Logger")]
    pub(crate) logger: Vec<SocketAddr>,
    /// File of the keys that service and logger share (`outlive key` prints a key); the service uses the first key
    #[arg(long, value_name = "FILE", help_heading = "Logger")]
    pub(crate) key_file: Option<PathBuf>,
    /// Way in which the logger's acknowledgements become acknowledgements to clients
    #[arg(
        long,
        value_enum,
        default_value = "eager",
        requires = "logger",
        help_heading = "Logger"
    )]
    pub(crate) ack: Ack,
    /// Treatment of connections when no logger answers [default: unprotect; with --stateful: hold]
    #[arg(long, value_enum, requires = "logger", help_heading = "Logger")]
    pub(crate) on_logger_loss: Option<LoggerLoss>,
    /// With --stateful: output of the server that waits until the logger has the server's input
    #[arg(
        long,
        value_enum,
        default_value = "network",
        requires = "logger",
        help_heading = "Logger"
    )]
    pub(crate) output_commit: OutputCommit,
    /// With --stateful: number of client segments a second above which some segments are not copied to the logger
    ///
    /// Above this number, outlive does not copy a segment to the logger if the server itself tells the logger the
    /// bytes of the segment. With 0, outlive makes only the copies that are needed. After a takeover, the next host
    /// has the copied segments. The client retransmits the other segments when the retransmission timer expires.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 20_000,
        requires = "logger",
        help_heading = "Logger"
    )]
    pub(crate) mirror_skip_above: u32,
    /// Silence after which a logger is lost (ms, s, min, h; at least 100ms)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration, requires = "logger", help_heading = "Logger")]
    pub(crate) logger_timeout: Duration,
    /// With --stateful: while this host stands by, the server already runs here and silently follows the server on the
    /// serving host
    ///
    /// The server on this host replays the input of the server on the serving host while that input is recorded. A
    /// takeover then need not replay the whole record. The server on this host takes the memory and about the
    /// processor time of the server on the other host. This option needs --address-device, and excludes checkpoints.
    #[arg(long, requires = "logger", help_heading = "Standby")]
    pub(crate) hot: bool,
    /// Priority of this host among several standby hosts: the highest number serves next
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 100,
        requires = "logger",
        help_heading = "Standby"
    )]
    pub(crate) priority: u16,
    /// Address and port of the metrics for Prometheus (/metrics) and of the health check (/health: are connections
    /// protected?)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, help_heading = "Output")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Way in which the BPF programs are attached to the network interfaces
    #[arg(long, value_enum, default_value = "auto", help_heading = "Service")]
    pub(crate) attach: Attach,
    /// Print events as JSON, one event per line
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    // Before the flattened options: their heading holds for all that follow without one.
    /// The server and its arguments; the server must stay in the foreground (nginx: -g 'daemon off;')
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten, next_help_heading = "Service")]
    pub(crate) file: ConfigFile,
    #[command(flatten, next_help_heading = "Service")]
    pub(crate) history: HistoryDirectory,
    #[command(flatten, next_help_heading = "Service")]
    pub(crate) run: RunDirectory,
}

/// Options that bound the record of a server with state.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Bounding {
    /// With --stateful: make a checkpoint when this many bytes were recorded since the last checkpoint
    ///
    /// A checkpoint is an image, made by CRIU, of the server as a replay would make it. outlive then deletes the
    /// record before the checkpoint. The server does not stand still for a checkpoint. With --logger, the logger keeps
    /// the image, and a standby with the same options goes on from this image. At least 1MiB; units: bytes, KiB, MiB,
    /// GiB, kB, MB, GB.
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, help_heading = "State of the server")]
    pub(crate) checkpoint_at: Option<u64>,
    /// With --stateful: make a checkpoint when this time has passed since the last checkpoint and the record has grown
    /// (s, min, h; at least 1s)
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "State of the server")]
    pub(crate) checkpoint_every: Option<Duration>,
    /// Directory of checkpoints; a checkpoint is as large as the server's memory [default: in the run directory]
    #[arg(long, value_name = "DIR", help_heading = "State of the server")]
    pub(crate) checkpoint_dir: Option<PathBuf>,
    /// CRIU, version 4.0 or newer, which makes checkpoints, and makes servers from checkpoints
    #[arg(
        long,
        value_name = "PATH",
        default_value = "criu",
        help_heading = "State of the server"
    )]
    pub(crate) criu: PathBuf,
    /// With --stateful, in place of checkpoints: the server keeps nothing across connections that a client could miss
    ///
    /// outlive may end such a server and start it again when no client is connected. The record then begins anew, too.
    #[arg(long, help_heading = "State of the server")]
    pub(crate) stateless: bool,
    /// With --stateless: size of the record from which on the server is started anew
    ///
    /// At least 1MiB; units: bytes, KiB, MiB, GiB, kB, MB, GB.
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = units::bytes, requires = "stateless", help_heading = "State of the server")]
    pub(crate) stateless_reset_at: u64,
}

#[derive(Debug, Args)]
pub(crate) struct OfService {
    /// Name of the service [default: the only service]
    pub(crate) service: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) run: RunDirectory,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Name of the service, pool or member [default: all]
    pub(crate) service: Option<String>,
    /// List every connection, too
    #[arg(long)]
    pub(crate) connections: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) run: RunDirectory,
}

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Name of the service, pool or member [default: the only one]
    pub(crate) service: Option<String>,
    /// Continue with new events until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print JSON, one event per line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) run: RunDirectory,
}

#[derive(Debug, Args)]
pub(crate) struct ShowHistory {
    /// Name of the service [default: the only service that has a history]
    pub(crate) service: Option<String>,
    /// First moment to show, in UTC: an age (30min, 12h), a day (2026-11-27), or a time (2026-11-27T02:00:00Z)
    #[arg(long, value_name = "TIME", value_parser = units::since)]
    pub(crate) since: Option<units::Since>,
    /// Print JSON, one event per line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) history: HistoryDirectory,
}

#[derive(Debug, Args)]
#[command(
    mut_arg("address", |arg| arg.required(false)),
    mut_arg("command", |arg| arg.required(false)),
    mut_arg("json", |arg| arg.help("Print JSON, one answer per line"))
)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) serve: Serve,
    /// Check the pool of the balancer that listens there: its members, and their objects (--url)
    ///
    /// With --key-file, and without options of `outlive serve`. Each member answers for its own server, over the
    /// balancer's list of members. The exit status is 0 if all members could go on with each other's downloads.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, requires = "key_file", conflicts_with_all = ["address", "command", "standby", "logger"], help_heading = "Pool")]
    pub(crate) pool: Option<SocketAddr>,
    /// With --pool: path of an object that all members must serve alike, such as /big.iso
    ///
    /// Repeat this option for more objects, at most 64.
    #[arg(long, value_name = "PATH", value_parser = units::target, requires = "pool", help_heading = "Pool")]
    pub(crate) url: Vec<String>,
    /// Check the start of `outlive standby` in place of `outlive serve`
    #[arg(long, help_heading = "Standby")]
    pub(crate) standby: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Clean {
    /// Name of the service, pool or member [default: all without a running `serve`, `balance` or `objects`]
    pub(crate) service: Option<String>,
    /// Kill a server that is still running
    #[arg(long)]
    pub(crate) kill: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) history: HistoryDirectory,
    #[command(flatten)]
    pub(crate) run: RunDirectory,
}

#[derive(Debug, Args)]
pub(crate) struct Key {
    /// Name of the key: 1 to 32 letters, digits, '.', '_' or '-' [default: a random name]
    pub(crate) name: Option<String>,
}

/// Options of `outlive logger`. The texts of the command are those of [`Verb`].
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub(crate) struct Logger {
    #[command(subcommand)]
    pub(crate) verb: Option<LoggerVerb>,
    /// Address and port that services connect to
    ///
    /// Repeat this option for more addresses. Write an IPv6 address in brackets.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, required = true, help_heading = "Service")]
    pub(crate) listen: Vec<SocketAddr>,
    /// File of the keys of the services that may attach (see `outlive key`)
    #[arg(long, value_name = "FILE", required = true, help_heading = "Service")]
    pub(crate) key_file: Option<PathBuf>,
    /// Write records to this directory before the logger acknowledges them
    ///
    /// The records then outlive the logger and a power loss of the host. The directory needs about twice the size of
    /// the records, and 300MiB.
    #[arg(long, value_name = "DIR", help_heading = "Records")]
    pub(crate) dir: Option<PathBuf>,
    /// Time for which the logger keeps the records of a service that has gone away (ms, s, min, h)
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = units::duration, help_heading = "Records")]
    pub(crate) retention: Duration,
    /// Length of a lease (ms, s; 1ms to 2s) [default: six times the recent delay of renewals, between 50ms and 250ms]
    ///
    /// A host that has a standby may serve for this time after the logger last heard the host. A standby takes over
    /// soon after the end of the lease.
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "Standby")]
    pub(crate) lease: Option<Duration>,
    /// Tell the clients of a service to wait when no host serves the service for more than a second
    ///
    /// The logger sends packets with the address of the service as source. This needs CAP_NET_RAW, and a network that
    /// lets packets with the address of another host pass.
    #[arg(long, help_heading = "Standby")]
    pub(crate) zero_window_acks: bool,
    /// Largest size of the records of all services together (at least 1MiB) [default: half of this host's memory]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, help_heading = "Records")]
    pub(crate) limit_total: Option<u64>,
    /// Acknowledge each frame by itself, in place of one acknowledgement for all frames that were read together
    #[arg(long, conflicts_with = "ack_delay", help_heading = "Acknowledgements")]
    pub(crate) ack_each_frame: bool,
    /// Time between a frame and the acknowledgement of the frame, to save acknowledgements (us, ms)
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "Acknowledgements")]
    pub(crate) ack_delay: Option<Duration>,
    /// Time for which the logger stays awake after a datagram (us, ms; at most 1ms)
    ///
    /// A server may be waiting for the answer to the next datagram. Another program has the processor meanwhile if
    /// that program wants the processor. While another program computes, the logger sleeps. With 0us, the logger
    /// always sleeps at once.
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = units::moment, help_heading = "Acknowledgements")]
    pub(crate) busy_poll: Duration,
    #[command(flatten, next_help_heading = "Service")]
    pub(crate) file: ConfigFile,
    /// Address and port of the metrics for Prometheus (/metrics) and of the health check (/health: is all well?)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, help_heading = "Output")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Print events as JSON, one event per line
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LoggerVerb {
    /// Declare the host of a service gone for good; then another host may serve
    ///
    /// This command is for a host that had no standby at the end. No other host may take over from such a host,
    /// because the logger cannot know that the host is silent for good. You vouch that the host is switched off or cut
    /// off for good. The logger refuses while the host is heard. Other services are not touched.
    ///
    /// Then start `outlive serve` or `outlive standby` on another host: the service goes on there with the records of
    /// the logger.
    Release(Release),
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// Name of the service
    #[arg(value_parser = units::service_name)]
    pub(crate) service: String,
    /// Address and port of the logger
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket)]
    pub(crate) logger: SocketAddr,
    /// File of keys; the logger must know the first key
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LoggerProcess {
    #[arg(long)]
    pub(crate) pins: PathBuf,
    #[arg(long)]
    pub(crate) lock: PathBuf,
    #[arg(long)]
    pub(crate) per_connection: u64,
    #[arg(long)]
    pub(crate) total: u64,
    #[arg(long)]
    pub(crate) connections: usize,
    #[arg(long, value_enum)]
    pub(crate) replay: Replay,
}

#[derive(Debug, Args)]
pub(crate) struct Room {
    #[arg(long)]
    pub(crate) criu: PathBuf,
    #[arg(long, default_value_t = 0)]
    pub(crate) number: u64,
    #[arg(long)]
    pub(crate) image: Option<PathBuf>,
    #[arg(long)]
    pub(crate) serves: bool,
    #[arg(last = true)]
    pub(crate) command: Vec<OsString>,
}
