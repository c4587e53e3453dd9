//! Which service has which addresses. What the logger does with it is the crate `lease`'s.

use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::values;

/// A host says which addresses clients of a service connect to: no other service has them as long as this one lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The host, as in [`super::LeaseRequest::host`].
    pub host: u64,
    /// The service is being served: who has clients is not refused, but told of the other one.
    pub serves: bool,
    /// The operator knows that another site has the same addresses (NAT): nothing is refused for them.
    pub shared: bool,
    /// The host's name, for people.
    #[serde(with = "values::name")]
    pub host_name: String,
    /// The name of the service.
    #[serde(with = "values::name")]
    pub service: String,
    /// What clients connect to; IPv4 not in its mapped form.
    #[serde(with = "values::addresses")]
    pub addresses: Vec<SocketAddr>,
    /// The version of determinants that the host records and replays; 0: the server has no state, or the peer does not
    /// know the field.
    #[serde(default)]
    pub determinants: u32,
}
