//! Which service has which addresses. The crate `lease` decides about claims.

use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::values;

/// A host tells the addresses that clients of a service connect to. No other service gets these
/// addresses as long as this service lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The host, as in [`super::LeaseRequest::host`].
    pub host: u64,
    /// The service is being served: the logger does not refuse a service with clients, but reports
    /// the other service.
    pub serves: bool,
    /// The operator knows that another site has the same addresses (NAT): these addresses are no
    /// reason to refuse.
    pub shared: bool,
    /// The host's name, for people.
    #[serde(with = "values::name")]
    pub host_name: String,
    /// The name of the service.
    #[serde(with = "values::name")]
    pub service: String,
    /// Addresses that clients connect to; IPv4 not in the mapped form.
    #[serde(with = "values::addresses")]
    pub addresses: Vec<SocketAddr>,
    /// The version of determinants that the host records and replays; 0: the server has no state.
    pub determinants: u32,
}
