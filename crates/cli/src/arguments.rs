//! What can be asked of `outlive`.

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::units::{self, Addresses};

pub(crate) mod lab;
mod making;

pub(crate) use making::{Encapsulate, Make};

/// TCP connections that outlive the processes that serve them.
#[derive(Debug, Parser)]
#[command(name = "outlive", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a server so that its clients do not notice when it crashes
    Serve(Box<Serve>),
    /// Wait until the host that serves does not any more, and serve with all its connections
    ///
    /// Takes the same options as `outlive serve` does on the other host, with --logger and
    /// --address-device: the logger grants who serves, and the addresses come with the service. A host
    /// that was silent for too long cannot speak any more when this one begins.
    Standby(Box<Serve>),
    /// Hand a service over to its standby, and be a standby
    Move(Move),
    /// End a service's server and start it again, with all its connections
    ///
    /// For another version of the server, or another configuration that the server reads when it starts: clients see a pause.
    /// The server is ended as by a crash (SIGKILL): the connections are protected against that. Options of `outlive
    /// serve`, and the server's command, stay the same.
    Restart(Move),
    /// Show the services that are protected on this host
    Status(Status),
    /// Show what has happened to a service: deaths, restarts, connections kept and lost
    Events(Events),
    /// Show the events of a service, also from before the start of `outlive serve`, and the users behind moves and restarts
    History(ShowHistory),
    /// Say whether this kernel, these addresses and this command can be protected, and why not
    ///
    /// Takes the options of `outlive serve`, also from a file (--config), and asks the questions that serve asks before the start; the
    /// exit status is that of serve. Questions about options that are not given are left out.
    Check(Box<Check>),
    /// Remove what an `outlive serve` left behind that was killed itself
    Clean(Clean),
    /// Print a fresh key for a key file, with which a service and its logger know each other
    Key(Key),
    /// Keep the records of services that run on other machines
    Logger(Logger),
    /// Build what was saved before it is asked for, and show it when it is
    ///
    /// `outlive make --watch` does on every save what `make` would do, concealed: no file changes, and nothing is printed. `outlive make` shows what was
    /// done, finished or not, and does what is missing. Without anybody who watches it is `make`.
    Make(Make),
    /// Run a command whose effects on files nobody sees before they are wanted
    ///
    /// The command begins at once, in the background. What it does to files of this directory, of /tmp, /var/tmp and $TMPDIR, and what it says, is
    /// kept until it is mandated: then all of it is there at once, in the order in which it was done, and a command that still
    /// runs goes on as if nothing had been kept. What cannot be kept (network, devices, changes elsewhere) waits until then. If
    /// something that it has read has changed meanwhile, it cannot be mandated.
    Encapsulate(Box<Encapsulate>),
    /// Test hosts on this machine, to break by hand: kill, cut, lose, delay, power off
    ///
    /// A lab is some hosts in network namespaces of their own, with links that can be cut, slowed
    /// and made lossy. Programs on a host are real ones and see this machine's files; what they
    /// listen on is seen by the other hosts alone. Nothing connects a lab with the world. Process numbers are this machine's:
    /// `pgrep` on a host shows processes of other hosts and labs, too; `outlive lab kill` those of the host alone.
    ///
    /// A lab needs root and stays until `outlive lab down`, held by a small process in the
    /// background.
    #[command(subcommand)]
    Lab(lab::Lab),
    /// Write the man pages: one of outlive, and one of each command
    Man(Man),
    /// Print what makes a shell complete commands and options
    ///
    /// Where each shell looks for that:
    ///
    /// {n}outlive completions bash > /usr/share/bash-completion/completions/outlive
    /// {n}outlive completions zsh > /usr/local/share/zsh/site-functions/_outlive
    /// {n}outlive completions fish > /usr/share/fish/vendor_completions.d/outlive.fish
    Completions(Completions),
    /// The logger process that serve starts for itself
    #[command(name = serve::LOGGER_VERB, hide = true)]
    LoggerProcess(LoggerProcess),
    /// The first process of a room for an image of a server, which serve opens
    #[command(name = serve::ROOM_VERB, hide = true)]
    Room(Room),
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The directory of the pages, such as /usr/local/share/man (in man1 and man8); made if missing
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Whose language
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum North {
    /// it has none, or none that a client could miss
    Off,
    /// it has: nothing else may be protected than what can be rebuilt
    Require,
    /// rebuild it if that can be; a server of which it is found that it cannot is ended, and begun again as with off
    Prefer,
}

impl North {
    /// Is the server to be rebuilt from what it was told?
    pub(crate) fn is_wanted(self) -> bool {
        !matches!(self, Self::Off)
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Replay {
    /// from the connection's beginning: earlier requests are executed again
    Connection,
    /// from the last unanswered request: for servers that keep nothing between requests
    Turn,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Verify {
    /// all, byte by byte (all output is recorded then: costs memory and time)
    Full,
    /// all by a keyed hash, in the kernel, and the first 4 KiB of each answer byte by byte; where a server speaks faster than
    /// 1.6 Gbit/s on a processor, of the rest of that connection 64 bytes of each 32 KiB
    Hash,
    /// the first 4 KiB of each answer
    #[value(alias = "turn")]
    Head,
    /// nothing
    Off,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum CrashOn {
    /// the main process ends by a signal, or with a status other than 0; the death of another process is left to its parent: for
    /// servers with a process for each session
    Main,
    /// as main, and any process killed by a signal
    Signal,
    /// as signal, and a status other than 0 of any process
    AnyFailure,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Ack {
    /// the server's own, saying no more than is recorded
    Basic,
    /// as basic, but those without data wait until all that they say is recorded
    Lazy,
    /// as basic, and one more for each acknowledgement of the logger
    Eager,
    /// as eager, but only when the client has sent nothing since
    Conditional,
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
    /// TCX where the kernel has it (Linux 6.6), else clsact
    Auto,
    Tcx,
    Clsact,
}

/// Where running services are found.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunDirectory {
    /// Directory for sockets, locks and private mounts
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/outlive",
        env = "OUTLIVE_RUN_DIR",
        hide_env = true
    )]
    pub(crate) run_dir: PathBuf,
}

/// Where events are kept that outlive `outlive serve`.
#[derive(Debug, Clone, Args)]
pub(crate) struct HistoryDirectory {
    /// Directory in which the events of services are kept on disk, 16 MiB of each at the most, for `outlive history` [default:
    /// $STATE_DIRECTORY, or /var/lib/outlive/history; with another --run-dir: none]
    #[arg(long, value_name = "DIR")]
    history: Option<PathBuf>,
}

/// Where the history of a host's services is.
const HISTORY: &str = "/var/lib/outlive/history";

impl HistoryDirectory {
    /// Of services in this run directory.
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
    /// Read options from this TOML file; the command line wins
    ///
    /// Its keys are the long names of the options, as in limit-total = "2GiB", and lists where an option
    /// can be repeated; the server's command is command = ["nginx", "-g", "daemon off;"].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl ConfigFile {
    /// What is to be said behind a complaint about options.
    pub(crate) fn hint(&self) -> String {
        self.config.as_deref().map_or_else(String::new, config_hint)
    }
}

/// What is to be said behind a complaint about options, some of which may be in this file.
pub(crate) fn config_hint(file: &Path) -> String {
    format!(" (options are also in {})", file.display())
}

/// Runs COMMAND and protects the connections to it: when it crashes it is started again, and every
/// open connection is carried over to the new process. Neither client nor server is changed.
///
/// The record of what clients sent is kept by a logger process on this host: it survives the
/// server's death and restarts, but not this host's. With --logger it is kept on another machine,
/// and clients are told of nothing that is not there.
#[derive(Debug, Clone, Args)]
pub(crate) struct Serve {
    /// Address and port that clients connect to, or a range of ports (10.0.0.1:20000-20100; the passive ports of FTP
    /// are some); repeat it for more (IPv6 in brackets)
    #[arg(long, value_name = "ADDRESS:PORT[-PORT]", required = true, value_parser = units::addresses)]
    pub(crate) address: Vec<Addresses>,
    /// Bring the addresses up on this network device when their connections are protected, tell the
    /// neighbours, and take them down at the end. Give it if connections shall outlive a restart of
    /// this host (with --logger): to addresses that the system brings up, its kernel answers first,
    /// with resets
    #[arg(long, value_name = "DEVICE")]
    pub(crate) address_device: Option<String>,
    /// Bring the addresses up although another host on the link answers for the addresses: a router with proxy ARP answers for
    /// all. Without this option serve asks the neighbours for half a second, and refuses to start where one has an
    /// address
    #[arg(long, requires = "address_device")]
    pub(crate) take_address: bool,
    /// Another site has the same addresses, which lead to another server there (NAT, anycast): the logger does not refuse
    /// one service for the other. Without this option a logger that knows another service with one of the addresses, on
    /// another host, refuses this service by name
    #[arg(long, requires = "logger")]
    pub(crate) shared_address: bool,
    /// Name of the service [default: made from the first address]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Whether the server has state of its own that its restart rebuilds: what its processes are told is then recorded
    /// by a preloaded library, and replayed
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) north: North,
    #[command(flatten)]
    pub(crate) bounding: Bounding,
    /// How much of a connection the restarted server is given again
    #[arg(long, value_enum, default_value = "connection")]
    pub(crate) replay: Replay,
    /// How much of what the server then says again is compared with what the client was sent
    #[arg(long, value_enum, default_value = "hash")]
    pub(crate) verify: Verify,
    /// HTTP response fields whose values may differ when they are said again
    #[arg(
        long,
        value_name = "FIELD",
        value_delimiter = ',',
        default_value = "Date"
    )]
    pub(crate) tolerate: Vec<String>,
    /// Which deaths are crashes, after which the whole server is started again
    #[arg(long, value_enum, default_value = "signal")]
    pub(crate) crash_on: CrashOn,
    /// How long connections wait for a server that does not come back (ms, s, min, h)
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pub(crate) give_up_after: Duration,
    /// A connection in whose replay the server died this often is reset
    #[arg(long, value_name = "DEATHS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) quarantine_after: u32,
    /// How long the server may take to end when outlive is stopped, and, with --address-device, its clients to be sent what it
    /// has left for them (ms, s, min, h)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    pub(crate) grace: Duration,
    /// Most of a connection's input that is recorded (bytes, KiB, MiB, GiB, kB, MB, GB; at most 2GiB); one
    /// that exceeds it goes on unprotected
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = units::bytes)]
    pub(crate) limit_per_connection: u64,
    /// Most that the records of all connections together may hold, and again that of a server with state (--north), which
    /// goes on unprotected when that is full (bytes, KiB, MiB, GiB, kB, MB, GB) [default: a quarter of this host's memory]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    pub(crate) limit_total: Option<u64>,
    /// Ring between kernel and logger (a power of two; KiB, MiB)
    #[arg(long, value_name = "BYTES", default_value = "32MiB", value_parser = units::bytes)]
    pub(crate) ring: u64,
    /// Most connections that are protected at a time; more are served, but unprotected
    #[arg(long, value_name = "NUMBER", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) max_connections: u32,
    /// Keep the record on another machine, where `outlive logger` listens; repeat it for more, the
    /// best first: the next is tried when one is lost
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, requires = "key_file")]
    pub(crate) logger: Vec<SocketAddr>,
    /// File of the keys that service and logger share (`outlive key` prints one); the first is used
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// How acknowledgements to clients are made of those of the logger
    #[arg(long, value_enum, default_value = "eager", requires = "logger")]
    pub(crate) ack: Ack,
    /// What becomes of connections when no logger answers [default: unprotect; with --north=require: hold]
    #[arg(long, value_enum, requires = "logger")]
    pub(crate) on_logger_loss: Option<LoggerLoss>,
    /// With --north: what the server writes to files and pipes waits for the logger, too, as what it says to clients
    /// does
    #[arg(long, requires = "logger")]
    pub(crate) commit_effects: bool,
    /// With --north: if more segments of clients than these come in a second, those are not copied to the logger whose bytes the
    /// server itself tells it. 0: no copy is made that is not needed. Who takes over has what was copied, and what was not comes
    /// again when the client's timer says so
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 20_000,
        requires = "logger"
    )]
    pub(crate) copies_per_second: u32,
    /// How long a logger may be silent before it is lost (ms, s, min, h; at least 100ms)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration, requires = "logger")]
    pub(crate) logger_timeout: Duration,
    /// With --north: while this host stands by, its server runs already and follows, silently, what the server is told where
    /// it serves, so that a takeover need not replay all of that. Takes the memory and about the processor time of the
    /// server on the other host
    #[arg(long, requires = "logger")]
    pub(crate) hot: bool,
    /// Of several hosts that stand by, the one with the lowest number serves next
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 100,
        requires = "logger"
    )]
    pub(crate) preference: u16,
    /// Show metrics to Prometheus there (/metrics), and whether connections are protected (/health)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket)]
    pub(crate) metrics: Option<SocketAddr>,
    /// How the programs are attached to the network interfaces
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) attach: Attach,
    /// Print events as JSON, one a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    #[command(flatten)]
    pub(crate) history: HistoryDirectory,
    #[command(flatten)]
    pub(crate) run: RunDirectory,
    /// The server and its arguments; it must stay in the foreground (nginx: -g 'daemon off;')
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What keeps the record of a server with state from growing for ever.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Bounding {
    /// With --north: when so much was recorded since the last one, make a checkpoint with CRIU, an image of what the server would
    /// be after a replay, and forget the record before it (bytes, KiB, MiB, GiB, kB, MB, GB). The server does not stand still for it. With
    /// --logger the image goes there, and a standby with the same options goes on from it
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    pub(crate) checkpoint_at: Option<u64>,
    /// With --north: make a checkpoint when this time has passed since the last checkpoint, and the record has grown (s, min, h)
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) checkpoint_every: Option<Duration>,
    /// Directory for checkpoints, which are as large as the server's memory [default: in the run directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint_dir: Option<PathBuf>,
    /// The CRIU that makes checkpoints, and servers of them, version 4.0 or newer
    #[arg(long, value_name = "PATH", default_value = "criu")]
    pub(crate) criu: PathBuf,
    /// With --north, in place of checkpoints: the server keeps nothing across connections that a client could miss. When nobody
    /// is connected it may be ended and started anew, and its record begins anew with it
    #[arg(long)]
    pub(crate) stateless: bool,
    /// With --stateless: the size of the record from which on the server is started anew (bytes, KiB, MiB, GiB, kB, MB, GB)
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = units::bytes, requires = "stateless")]
    pub(crate) renew_at: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Move {
    /// The service [default: the only one]
    pub(crate) service: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) run: RunDirectory,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The service [default: all]
    pub(crate) service: Option<String>,
    /// Also list every connection
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
    /// The service [default: the only one]
    pub(crate) service: Option<String>,
    /// Go on until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print JSON, one event a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) run: RunDirectory,
}

#[derive(Debug, Args)]
pub(crate) struct ShowHistory {
    /// The service [default: the only one that has a history]
    pub(crate) service: Option<String>,
    /// Since then: a time ago (30min, 12h), a day, or a time of the clock (2026-11-27T02:00:00Z), UTC
    #[arg(long, value_name = "TIME", value_parser = units::since)]
    pub(crate) since: Option<units::Since>,
    /// Print JSON, one event a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) history: HistoryDirectory,
}

#[derive(Debug, Args)]
#[command(
    mut_arg("address", |arg| arg.required(false)),
    mut_arg("command", |arg| arg.required(false)),
    mut_arg("json", |arg| arg.help("Print JSON, one answer a line"))
)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) serve: Serve,
    /// Check what `outlive standby` would begin with
    #[arg(long)]
    pub(crate) standby: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Clean {
    /// The service [default: all that no outlive serve runs]
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

/// Prints a line for a key file: (umask 077; outlive key > keys), and the same file on both hosts.
///
/// The first key of a file is used to speak, all are accepted. To change keys without an
/// interruption: add the new line to both files, then make it the first, then remove the old one.
/// Files are read again when they change.
#[derive(Debug, Args)]
pub(crate) struct Key {
    /// The key's name: 1 to 32 letters, digits, '.', '_' or '-' [default: one of its own]
    pub(crate) name: Option<String>,
}

/// Keeps the record of what clients send to services on other machines: whatever their clients were
/// told has been received is here, and outlives the loss of those machines' processes.
///
/// Services connect to it with `outlive serve --logger ADDRESS:PORT --key-file FILE`. TCP and UDP
/// of the port must reach it. Who has a key of the key file may read and write records; the datagrams
/// between a service and its logger are authenticated, but not secret: use a private network.
///
/// While no host serves a service that has a standby, the logger tells its clients to wait: packets with
/// the service's address as their source, which take CAP_NET_RAW.
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub(crate) struct Logger {
    #[command(subcommand)]
    pub(crate) verb: Option<LoggerVerb>,
    /// Address and port that services connect to; repeat it for more (IPv6 in brackets)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, required = true)]
    pub(crate) listen: Vec<SocketAddr>,
    /// File with the keys of those who may attach (see: outlive key)
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) key_file: Option<PathBuf>,
    /// Write records to this directory before they are acknowledged, so that they outlive the
    /// logger and its host's power; it needs about twice the size of the records, and 300MiB
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// How long the records of a service are kept that has gone away (ms, s, min, h)
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = units::duration)]
    pub(crate) keep: Duration,
    /// For how long a host that has a standby may serve after it was heard last; a standby takes over
    /// soon after that (ms, s; at most 2s) [default: six times as long as the host was late of late, between
    /// 50ms and 250ms]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) lease: Option<Duration>,
    /// Tell the clients of a service that no host serves for more than a second to wait, in its name.
    /// Needs CAP_NET_RAW, and a network that lets packets with another host's address pass
    #[arg(long)]
    pub(crate) tell_clients: bool,
    /// Most that the records of all services together may hold [default: half of this host's
    /// memory]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    pub(crate) limit_total: Option<u64>,
    /// Acknowledge each frame by itself, not once for all that were read together
    #[arg(long, conflicts_with = "ack_delay")]
    pub(crate) ack_each_frame: bool,
    /// Acknowledge so long after a frame (us, ms), to save acknowledgements
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) ack_delay: Option<Duration>,
    /// For how long after a datagram the logger stays awake for the next one, which servers may be waiting
    /// for (us, ms; at most 1ms; 0us: it sleeps at once). Others have the processor meanwhile if they want it, and
    /// while they compute it sleeps
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = units::moment)]
    pub(crate) busy_poll: Duration,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// Show metrics to Prometheus there (/metrics), and whether all is well (/health)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Print events as JSON, one a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LoggerVerb {
    /// Tell a logger that the host which serves a service is gone for good, so that another host may serve
    ///
    /// For a host that had no standby at the end: no other host may take over, because the logger cannot know that the host
    /// is silent for good. You vouch that the host is switched off or cut off for good. The logger refuses while the host is
    /// heard. Other services are not touched. Then start `outlive serve` or `outlive standby` on another host: the service goes
    /// on there with the logger's records.
    Release(Release),
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// The service
    pub(crate) service: String,
    /// The logger
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket)]
    pub(crate) logger: SocketAddr,
    /// File of the keys that the logger knows
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
