//! Which service has which addresses. What the logger does with it is the crate `lease`'s.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::cursor::{Cursor, Writer, text};
use super::{ControlError, body::until_the_end};

/// A host says which addresses clients of a service connect to: no other service has them as long as this one lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The host, as in [`super::LeaseRequest::host`].
    pub host: u64,
    /// The service is being served: who has clients is not refused, but told of the other one.
    pub serves: bool,
    /// The operator knows that another site has the same addresses (NAT): nothing is refused for them.
    pub shared: bool,
    /// The host's name, for people.
    pub host_name: String,
    /// The name of the service.
    pub service: String,
    /// What clients connect to; IPv4 not in its mapped form.
    pub addresses: Vec<SocketAddr>,
}

impl Claim {
    pub(super) fn encode(&self, body: &mut Writer<'_>) -> Result<(), ControlError> {
        body.u64(self.host);
        body.bool(self.serves);
        body.bool(self.shared);
        for name in [&self.host_name, &self.service] {
            encode_name(name, body)?;
        }
        for address in &self.addresses {
            let ip = match address.ip() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            body.bytes(&ip.octets());
            body.u16(address.port());
        }
        Ok(())
    }

    pub(super) fn decode(body: &mut Cursor<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            host: body.u64()?,
            serves: body.bool()?,
            shared: body.bool()?,
            host_name: decode_name(body)?,
            service: decode_name(body)?,
            addresses: until_the_end(body, |body| {
                let ip = IpAddr::V6(Ipv6Addr::from(body.array()?)).to_canonical();
                Ok(SocketAddr::new(ip, body.u16()?))
            })?,
        })
    }
}

/// A text behind which something else comes.
pub(super) fn encode_name(name: &str, body: &mut Writer<'_>) -> Result<(), ControlError> {
    let length = u16::try_from(name.len());
    body.u16(length.map_err(|_| ControlError::TooLong(name.len()))?);
    body.bytes(name.as_bytes());
    Ok(())
}

pub(super) fn decode_name(body: &mut Cursor<'_>) -> Result<String, ControlError> {
    let length = body.u16()?;
    text(body.bytes(length.into())?.to_vec())
}
