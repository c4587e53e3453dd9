//! Why the addresses of a service are not there.

use std::{fmt, io, net::IpAddr};

use dataplane::DataplaneError;

/// An address that cannot be brought up, held or taken down.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// No such network device.
    #[error("this host has no network device {0:?}; `ip link` lists the devices")]
    NoDevice(String),
    /// Another host answers for an address that is to be brought up.
    #[error("another host on {device} has {ip} ({})", LinkLayer(*mac))]
    InUse {
        /// The address.
        ip: IpAddr,
        /// On the link of this device.
        device: String,
        /// The other host's link-layer address.
        mac: [u8; 6],
    },
    /// The system refuses.
    #[error("cannot {what}: {source}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// The neighbours cannot be asked or told.
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
}

/// A link-layer address, for people.
#[derive(Debug, Clone, Copy)]
pub struct LinkLayer(
    /// The bytes in order.
    pub [u8; 6],
);

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.map(|byte| format!("{byte:02x}"));
        f.write_str(&bytes.join(":"))
    }
}

pub(crate) trait SystemContext<T> {
    fn doing(self, what: &'static str) -> Result<T, AddressError>;
}

impl<T> SystemContext<T> for io::Result<T> {
    fn doing(self, what: &'static str) -> Result<T, AddressError> {
        self.map_err(|source| AddressError::System { what, source })
    }
}
