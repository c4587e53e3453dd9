//! Options of `outlive objects`.

use std::{ffi::OsString, net::IpAddr, net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use protocol::pool::MemberName;

use super::{ConfigFile, RunDirectory};
use crate::units;

#[derive(Debug, Clone, Args)]
pub(crate) struct Objects {
    /// Address and port on which `outlive balance` of the pool listens for members
    ///
    /// Of several balancers (`outlive balance --register`) name all, with a comma between two.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, value_delimiter = ',', required = true, help_heading = "Pool")]
    pub(crate) pool: Vec<SocketAddr>,
    /// File of the keys that the pool shares (`outlive key` prints a key); the member uses the first key
    #[arg(long, value_name = "FILE", required = true, help_heading = "Pool")]
    pub(crate) key_file: Option<PathBuf>,
    /// Name of this member, unique in the pool [default: the host's name]
    #[arg(long, value_name = "NAME", help_heading = "Pool")]
    pub(crate) name: Option<MemberName>,
    /// Address at which the balancer reaches this host [default: the address from which this host reaches the balancer]
    ///
    /// Balancer and members are neighbours: no router is between them.
    #[arg(long, value_name = "ADDRESS", help_heading = "Pool")]
    pub(crate) member_address: Option<IpAddr>,
    /// Longest time for which a request stays unacknowledged (s, min; at most 3min)
    ///
    /// The client keeps an unacknowledged request, and another member can go on with the response. After this time
    /// the request is acknowledged, and the rest of the download is not protected.
    #[arg(long, value_name = "TIME", default_value = "3min", value_parser = units::duration, help_heading = "Objects")]
    pub(crate) withhold: Duration,
    /// Objects never change under a name: later downloads on a connection are protected up to 448 KiB, not 24 KiB
    #[arg(long, help_heading = "Objects")]
    pub(crate) immutable: bool,
    /// The server makes some responses from inputs that it tells in the field X-TRODS (needs a store)
    ///
    /// The store gets the inputs with the request, and the client gets spaces. Another member asks its server with the
    /// inputs in the same field of the request, and the server must answer with the same bytes.
    #[arg(long, help_heading = "Objects")]
    pub(crate) dynamic: bool,
    /// Every server of the pool sends the same chunks of the same response (needs a store)
    ///
    /// A response in chunks has no ranges: another server sends the whole response again, and the member throws the
    /// bytes away that the client has, at most --discard-limit. If a server sends chunks of other lengths than another,
    /// downloads break. The chunks of a compression on the fly depend on the speed of the client: nginx's gzip is not
    /// deterministic.
    #[arg(long, help_heading = "Objects")]
    pub(crate) deterministic_chunks: bool,
    /// Most bytes to read and to throw away if the server ignores a range (at most 1GiB)
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = units::bytes, help_heading = "Objects")]
    pub(crate) discard_limit: u64,
    /// Longest time for which a member that is asked to stop serves its connections (s, min)
    ///
    /// New connections go to other members. At the end, the connections that are left continue on other members, as
    /// after a death.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration, help_heading = "Pool")]
    pub(crate) drain: Duration,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    #[command(flatten)]
    pub(crate) run: RunDirectory,
    /// Address and port of the metrics for Prometheus (/metrics) and of the health check (/health: has the member a
    /// lease?)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::socket, help_heading = "Output")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Print events as JSON, one object on each line
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
