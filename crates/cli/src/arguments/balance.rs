//! Options of `outlive balance`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use balance::EtcdServers;
use clap::{Args, Subcommand, ValueEnum};
use protocol::pool::{StoreSettings, StoreUrlText};
use types::{Encapsulation, TableKind, VersionCheck};

use super::{ConfigFile, RunDirectory};
use crate::units;

/// Options of `outlive balance`. The texts of the command are those of [`super::Verb`].
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub(crate) struct Balance {
    #[command(subcommand)]
    pub(crate) verb: Option<BalanceVerb>,
    /// Address and port that clients connect to
    ///
    /// Repeat this option for more addresses, at most 16. Write an IPv6 address in brackets. All members serve all
    /// addresses.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, required = true, help_heading = "Service")]
    pub(crate) address: Vec<SocketAddr>,
    /// Network device on which outlive brings the addresses up [default: this host has the addresses]
    ///
    /// outlive announces the addresses to the neighbours. Ten minutes after the last `outlive balance`, the addresses
    /// are gone.
    #[arg(long, value_name = "DEVICE", help_heading = "Service")]
    pub(crate) address_device: Option<String>,
    /// Name of the pool on this host: letters, digits, '.', '_' or '-'
    #[arg(long, value_name = "NAME", default_value = "pool", value_parser = units::pool_name, help_heading = "Service")]
    pub(crate) name: String,
    /// Address and port that members connect to
    ///
    /// Repeat this option for more addresses. Write an IPv6 address in brackets.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, required = true, help_heading = "Members")]
    pub(crate) listen: Vec<SocketAddr>,
    /// File of the keys of the members (see `outlive key`)
    ///
    /// The secret of the pool follows from the first key. After a change of the first key, restart the balancer at a
    /// quiet time: connections then belong to other members.
    #[arg(long, value_name = "FILE", required = true, help_heading = "Members")]
    pub(crate) key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cooperation: Cooperation,
    #[command(flatten)]
    pub(crate) spread: Spread,
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// What must be equal on two members before a download continues on the other member
    #[arg(
        long,
        value_enum,
        value_name = "VALIDATORS",
        default_value = "etag",
        help_heading = "Members"
    )]
    pub(crate) version_check: Check,
    #[command(flatten, next_help_heading = "Store")]
    pub(crate) store: StoreOptions,
    #[command(flatten, next_help_heading = "Service")]
    pub(crate) file: ConfigFile,
    #[command(flatten, next_help_heading = "Service")]
    pub(crate) run: RunDirectory,
    /// Address and port of the metrics for Prometheus (/metrics) and of the health check (/health: is all well?)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, help_heading = "Output")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Print events as JSON, one event per line
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Which packets go to which member, and how.
#[derive(Debug, Args)]
pub(crate) struct Spread {
    /// How connections are spread over the members
    #[arg(long, value_enum, default_value = "maglev", help_heading = "Members")]
    pub(crate) hash: Hash,
    /// Send packets to members through routers [default: all members are neighbours of this host and of each other]
    ///
    /// Members get this setting from the balancer. The path to each member must carry packets of 1500 bytes.
    #[arg(long, value_enum, value_name = "PROTOCOL", help_heading = "Members")]
    pub(crate) encapsulate: Option<Encapsulate>,
    /// Program of the kernel that forwards packets to members
    ///
    /// With XDP, packets for members on the link of the device go back to this link before the kernel's TCP/IP stack.
    /// All other packets go on to tc: fragments, packets without a member, the first packet to a member in a second.
    /// A device whose driver has no native XDP is an error. XDP does not encapsulate.
    #[arg(
        long,
        value_enum,
        value_name = "PROGRAM",
        default_value = "tc",
        conflicts_with = "no_forward",
        help_heading = "Members"
    )]
    pub(crate) forward: Forward,
    /// Network device on which packets of clients arrive, for XDP [default: --address-device, or the devices that have
    /// the addresses]
    ///
    /// Repeat this option for more devices.
    #[arg(
        long,
        value_name = "DEVICE",
        conflicts_with = "no_forward",
        help_heading = "Members"
    )]
    pub(crate) forward_device: Vec<String>,
}

/// Times after the last word of a member.
#[derive(Debug, Args)]
pub(crate) struct Timing {
    /// Length of a lease (ms, s; 1ms to 2s) [default: six times the recent delay of renewals, between 25ms and 250ms]
    ///
    /// A member may send for this time after the balancer last heard the member, and is declared dead soon after.
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "Members")]
    pub(crate) lease: Option<Duration>,
    /// Time after a change of the pool in which clients with weak proof may continue on another member (s, min)
    ///
    /// A client repeats a segment no later than after 2 minutes. After this time, only segments with a strong proof
    /// continue a connection of a dead member.
    #[arg(long, value_name = "TIME", default_value = "130s", value_parser = units::duration, help_heading = "Members")]
    pub(crate) quiescence: Duration,
}

/// Options of the store.
#[derive(Debug, Args)]
pub(crate) struct StoreOptions {
    /// Key-value store with the state of long downloads: valkey://, redis:// or memcached:// [default: none]
    ///
    /// Write valkey://USER:PASSWORD@HOST:PORT/DB; all but HOST may be absent. Repeat this option for a second store.
    /// All members must reach the store. Records are encrypted with the secret of the pool.
    #[arg(id = "store", long = "store", value_name = "URL", value_parser = units::store_url)]
    urls: Vec<String>,
    /// Which of two stores must have a record before the pool relies on the record
    #[arg(
        long,
        value_enum,
        value_name = "STORES",
        default_value = "first",
        requires = "store"
    )]
    store_acks: Acks,
    /// A response that is under way for this time is written to the store (ms, s)
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = units::duration, requires = "store")]
    store_after: Duration,
}

impl StoreOptions {
    /// The settings for the members. `None`: no store.
    pub(crate) fn settings(&self) -> Option<StoreSettings> {
        let url = |text: &String| StoreUrlText { text: text.clone() };
        let urls: Vec<StoreUrlText> = self.urls.iter().map(url).collect();
        (!urls.is_empty()).then(|| StoreSettings {
            urls,
            needs_all: matches!(self.store_acks, Acks::Both),
            after_us: u32::try_from(self.store_after.as_micros()).unwrap_or(u32::MAX),
        })
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Acks {
    /// the store that is first
    First,
    /// both
    Both,
}

/// Other balancers.
#[derive(Debug, Args)]
pub(crate) struct Cooperation {
    /// etcd servers in which the balancers of the pool keep the table of members [default: the pool has one balancer]
    ///
    /// Give all balancers the same servers, --name, --key-file and settings, and name all balancers in `outlive objects
    /// --pool`. A member sends by the leases of all balancers. A balancer that dies is removed from the table.
    #[arg(
        long,
        value_name = "etcd://HOST:PORT[,HOST:PORT]",
        help_heading = "Members"
    )]
    pub(crate) register: Option<EtcdServers>,
    /// Forward no packets: another load balancer does, with the table that --on-change gets
    #[arg(
        long,
        requires = "on_change",
        conflicts_with = "address_device",
        help_heading = "Members"
    )]
    pub(crate) no_forward: bool,
    /// Program that runs after each change of the table, which is JSON on its standard input
    ///
    /// OUTLIVE_MEMBERS has the addresses of the members that get new connections, OUTLIVE_SERVICE the addresses of the
    /// pool, OUTLIVE_EPOCH the epoch, and OUTLIVE_POOL the name. A run that fails is repeated after a second.
    #[arg(long, value_name = "PROGRAM", help_heading = "Members")]
    pub(crate) on_change: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Hash {
    /// a change of a member moves few connections of the other members
    Maglev,
    /// the hash modulo the number of members: a change moves almost all connections
    Mod,
}

impl From<Hash> for TableKind {
    fn from(hash: Hash) -> Self {
        match hash {
            Hash::Maglev => Self::Maglev,
            Hash::Mod => Self::Modulo,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Forward {
    /// tc, on all devices
    Tc,
    /// XDP in the driver of the device, and tc
    Xdp,
    /// XDP in the kernel, and tc: for tests, on a device whose driver has no native XDP
    XdpGeneric,
}

impl From<Forward> for balance::Forward {
    fn from(forward: Forward) -> Self {
        match forward {
            Forward::Tc => Self::Tc,
            Forward::Xdp => Self::Xdp,
            Forward::XdpGeneric => Self::XdpGeneric,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Encapsulate {
    /// each packet in a UDP datagram to port 7702
    Udp,
}

impl From<Encapsulate> for Encapsulation {
    fn from(encapsulate: Encapsulate) -> Self {
        match encapsulate {
            Encapsulate::Udp => Self::Udp,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Check {
    /// the strong ETag, or Last-Modified if a response has no strong ETag; and the length
    Etag,
    /// Last-Modified and the length: for servers with different forms of ETags
    Modified,
    /// the length
    Length,
    /// nothing: all members have the same bytes under each name
    Off,
}

impl From<Check> for VersionCheck {
    fn from(check: Check) -> Self {
        match check {
            Check::Etag => Self::Etag,
            Check::Modified => Self::Modified,
            Check::Length => Self::Length,
            Check::Off => Self::Off,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum BalanceVerb {
    /// Show the members of a pool, and the packets that each member was handed
    Status(BalanceStatus),
    /// Give a member no new connections; the member keeps its connections
    ///
    /// `outlive objects --drain` does the same when the member is stopped.
    Drain(BalanceMember),
    /// Confirm the death of a member that the status shows as unknown
    ///
    /// A balancer that takes over from a dead balancer does not know whether a silent member still has a lease of the
    /// dead balancer. Connections of such a member wait. Make sure that the member's host is off.
    ConfirmDead(BalanceMember),
}

#[derive(Debug, Args)]
pub(crate) struct BalanceMember {
    /// Name of the member
    pub(crate) member: String,
    /// Name of the pool
    #[arg(long, value_name = "NAME", default_value = "pool", value_parser = units::pool_name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) run: RunDirectory,
}

#[derive(Debug, Args)]
pub(crate) struct BalanceStatus {
    /// Name of the pool
    #[arg(default_value = "pool", value_parser = units::pool_name)]
    pub(crate) name: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) run: RunDirectory,
}
