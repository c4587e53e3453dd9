//! The status of a pool, and the questions of an operator.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use operator_socket::Question;
use serde::{Deserialize, Serialize};

use crate::{
    error::{BalanceError, SystemContext},
    run_directory,
};

/// The request that a member gets no new connections.
pub(crate) const DRAIN: &str = "drain";
/// The request of an operator who confirms the death of a member that no balancer may declare dead.
pub(crate) const CONFIRM_DEAD: &str = "confirm_dead";

/// Another load balancer forwards.
pub(crate) const NO_FORWARD: &str = "none";

/// State of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The name of the pool.
    pub pool: String,
    /// Addresses that clients connect to.
    pub service: Vec<SocketAddr>,
    /// Addresses that members connect to.
    pub listen: Vec<SocketAddr>,
    /// How connections are spread: `maglev` or `mod`.
    pub hash: String,
    /// Epoch of the table.
    pub epoch: u64,
    /// Number of stores with the records of connections.
    #[serde(default)]
    pub stores: usize,
    /// Where several balancers keep the table. `None`: the pool has one balancer.
    #[serde(default)]
    pub register: Option<String>,
    /// Why the register does not answer.
    #[serde(default)]
    pub register_failure: Option<String>,
    /// Number of the balancers whose leases the members need; 0 without a register.
    #[serde(default)]
    pub balancers: usize,
    /// The members need the leases of this balancer.
    #[serde(default)]
    pub grants: bool,
    /// Shortest and longest lease, milliseconds.
    pub lease_ms: [u64; 2],
    /// All living members.
    pub members: Vec<MemberStatus>,
    /// The program that forwards: `tc`, `xdp` or `xdp-generic`; `none` if another load balancer forwards.
    #[serde(default)]
    pub forward: String,
    /// Network devices with the program at XDP.
    #[serde(default)]
    pub xdp_devices: Vec<String>,
    /// Packets of clients.
    #[serde(flatten)]
    pub counts: PacketCounts,
}

/// Packets of clients, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketCounts {
    /// Packets handed to members.
    pub packets: u64,
    /// Of these: ICMP errors about connections.
    pub icmp_packets: u64,
    /// Dropped fragments of segments.
    pub dropped_fragments: u64,
    /// Segments dropped because there was no member.
    pub dropped_without_member: u64,
    /// Packets dropped because they are too long in UDP (`--encapsulate`).
    #[serde(default)]
    pub dropped_not_wrapped: u64,
    /// Of the packets handed to members: by XDP.
    #[serde(default)]
    pub xdp_packets: u64,
}

/// State of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The name of the member.
    pub name: String,
    /// Where packets reach the member.
    pub address: IpAddr,
    /// The member is in the table.
    pub in_table: bool,
    /// The member has a control stream.
    pub connected: bool,
    /// The member gets no new connections.
    pub draining: bool,
    /// The member is silent, and no balancer may declare it dead.
    #[serde(default)]
    pub unknown: bool,
    /// Time since the newest message, milliseconds.
    pub silent_ms: u64,
    /// Packets handed to the member.
    pub packets: u64,
}

/// Asks a running balancer for the state of its pool.
///
/// # Errors
/// No balancer of this name runs, or the balancer does not answer.
pub fn ask(run_dir: &Path, name: &str) -> Result<Status, BalanceError> {
    let mut status = None;
    let question = Question::Status { list: false };
    ask_for(&socket(run_dir, name), name, question, |line| {
        status = serde_json::from_str(line).ok();
        false
    })?;
    status
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
        .doing(DOING)
}

/// Asks a running balancer for its latest events, as lines of JSON; each line goes to `each` until `each` returns
/// `false`.
///
/// # Errors
/// As [`ask`].
pub fn ask_events(
    run_dir: &Path,
    name: &str,
    follow: bool,
    each: impl FnMut(&str) -> bool,
) -> Result<(), BalanceError> {
    ask_for(
        &socket(run_dir, name),
        name,
        Question::Events { follow },
        each,
    )
}

/// A member of a running balancer gets no new connections.
///
/// # Errors
/// As [`ask`]; the pool has no such member, or no other member gets connections.
pub fn drain(run_dir: &Path, name: &str, member: &str) -> Result<(), BalanceError> {
    request(run_dir, name, DRAIN, member)
}

/// Confirms the death of a member that no balancer may declare dead.
///
/// # Errors
/// As [`ask`]; the pool has no such member, or the member has a lease.
pub fn confirm_dead(run_dir: &Path, name: &str, member: &str) -> Result<(), BalanceError> {
    request(run_dir, name, CONFIRM_DEAD, member)
}

fn request(run_dir: &Path, name: &str, request: &str, member: &str) -> Result<(), BalanceError> {
    let done = operator_socket::request(&socket(run_dir, name), request, member);
    match done.map_err(|error| of_socket(error, name))?.refusal {
        None => Ok(()),
        Some(reason) => Err(BalanceError::NotDone(reason)),
    }
}

fn socket(run_dir: &Path, name: &str) -> PathBuf {
    run_directory::socket(run_dir, name)
}

const DOING: &str = "ask the balancer";

fn ask_for(
    socket: &Path,
    name: &str,
    question: Question,
    each: impl FnMut(&str) -> bool,
) -> Result<(), BalanceError> {
    operator_socket::ask(socket, question, each).map_err(|error| of_socket(error, name))
}

fn of_socket(error: io::Error, name: &str) -> BalanceError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            BalanceError::NotRunning(name.to_owned())
        }
        _ => BalanceError::System {
            what: DOING,
            source: error,
        },
    }
}
