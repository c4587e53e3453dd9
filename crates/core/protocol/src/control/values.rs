//! Encodings of values whose types belong to other modules, and checks of these values.

use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error, de::Visitor};

/// Bytes in one piece: a list of numbers would be written and read number by number.
pub(crate) mod bytes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        borrowed(deserializer).map(<[u8]>::to_vec)
    }
}

fn borrowed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'de [u8], D::Error> {
    struct Borrowed;

    impl<'de> Visitor<'de> for Borrowed {
        type Value = &'de [u8];

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<&'de [u8], E> {
            Ok(bytes)
        }
    }

    deserializer.deserialize_bytes(Borrowed)
}

/// Names of services and hosts, of at most [`NAME_LEN_MAX`] bytes. The logger passes names on to other hosts: with a
/// longer name, a message to another host could exceed the length of a message, and the stream of that host would end.
pub(super) mod name {
    use super::*;
    use crate::control::NAME_LEN_MAX;

    pub(in crate::control) fn serialize<S: Serializer>(
        name: &str,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name)
    }

    pub(in crate::control) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<String, D::Error> {
        let name = String::deserialize(deserializer)?;
        match name.len() {
            ..=NAME_LEN_MAX => Ok(name),
            len => Err(D::Error::custom(format_args!(
                "a name has {len} bytes, and the longest name {NAME_LEN_MAX} bytes"
            ))),
        }
    }
}

/// Addresses and ports of a connection: 36 bytes, as datagrams of the link have them.
pub(super) mod flow_key {
    use super::*;
    use crate::link::{FLOW_KEY_LEN, flow_key_from, flow_key_into};
    use wire::FlowKey;

    pub(in crate::control) const MAX_ENCODED: usize = 1 + FLOW_KEY_LEN;

    pub(in crate::control) fn serialize<S: Serializer>(
        key: &FlowKey,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut bytes = [0; FLOW_KEY_LEN];
        flow_key_into(key, &mut bytes);
        serializer.serialize_bytes(&bytes)
    }

    pub(in crate::control) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<FlowKey, D::Error> {
        let bytes = borrowed(deserializer)?.try_into();
        let bytes = bytes.map_err(|_| D::Error::custom("the length of a flow key is wrong"))?;
        Ok(flow_key_from(bytes))
    }
}

/// A handshake of a connection, framed.
pub(super) mod handshake {
    use super::*;
    use crate::control::framed;
    use crate::link::{Handshake, SynOptions};

    /// RFC 7323 2.3.
    const MAX_SCALE: u8 = 14;

    /// Frame, three numbers, options with a length, scales, and truth values.
    pub(in crate::control) const MAX_ENCODED: usize = 1 + (5 + 3 + 1) + (1 + 40) + 2 + 3;

    #[derive(Serialize, Deserialize)]
    struct Fields {
        tsval: u32,
        syn_window: u16,
        syn_flags: u8,
        #[serde(with = "bytes")]
        syn_options: Vec<u8>,
        window_scale: u8,
        client_scale: u8,
        timestamps: bool,
        sack: bool,
        whole_segments: bool,
    }

    pub(in crate::control) fn serialize<S: Serializer>(
        handshake: &Handshake,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let fields = Fields {
            tsval: handshake.tsval,
            syn_window: handshake.syn_window,
            syn_flags: handshake.syn_flags,
            syn_options: handshake.syn_options.as_slice().to_vec(),
            window_scale: handshake.window_scale,
            client_scale: handshake.client_scale,
            timestamps: handshake.timestamps,
            sack: handshake.sack,
            whole_segments: handshake.whole_segments,
        };
        framed::serialize(&fields, serializer)
    }

    pub(in crate::control) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Handshake, D::Error> {
        let fields: Fields = framed::deserialize(deserializer)?;
        if fields.window_scale > MAX_SCALE || fields.client_scale > MAX_SCALE {
            return Err(D::Error::custom("a window scale is above 14"));
        }
        let syn_options = SynOptions::new(&fields.syn_options);
        let too_long = || D::Error::custom("the options of a SYN are too long");
        Ok(Handshake {
            tsval: fields.tsval,
            syn_window: fields.syn_window,
            syn_flags: fields.syn_flags,
            syn_options: syn_options.ok_or_else(too_long)?,
            window_scale: fields.window_scale,
            client_scale: fields.client_scale,
            timestamps: fields.timestamps,
            sack: fields.sack,
            whole_segments: fields.whole_segments,
        })
    }
}

/// Keys of the link, framed.
pub(super) mod link_keys {
    use super::*;
    use crate::control::framed;
    use crate::link::{KeySlot, LinkKey, LinkKeys};

    #[derive(Serialize, Deserialize)]
    struct Fields {
        version: u8,
        slot: u8,
        up: [u8; 16],
        down: [u8; 16],
    }

    pub(in crate::control) fn serialize<S: Serializer>(
        keys: &LinkKeys,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let fields = Fields {
            version: keys.version,
            slot: keys.slot.number(),
            up: keys.up.0,
            down: keys.down.0,
        };
        framed::serialize(&fields, serializer)
    }

    pub(in crate::control) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<LinkKeys, D::Error> {
        let fields: Fields = framed::deserialize(deserializer)?;
        let unknown = || D::Error::custom("the slot of a key is neither 0 nor 1");
        Ok(LinkKeys {
            version: fields.version,
            slot: KeySlot::from_number(fields.slot).ok_or_else(unknown)?,
            up: LinkKey(fields.up),
            down: LinkKey(fields.down),
        })
    }
}

/// Parts of an outstream, each with a position.
pub(super) mod runs {
    use super::*;
    use crate::control::framed::list;
    use wire::SeqNumber;

    #[derive(Serialize)]
    struct WrittenRun<'a> {
        from: SeqNumber,
        #[serde(with = "bytes")]
        bytes: &'a [u8],
    }

    #[derive(Deserialize)]
    struct ReadRun {
        from: SeqNumber,
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    }

    pub(in crate::control) fn serialize<S: Serializer>(
        runs: &[(SeqNumber, Vec<u8>)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        // The reader's elements are larger than the writer's.
        list::check::<ReadRun, S>(runs.len())?;
        let all: Vec<WrittenRun<'_>> = runs
            .iter()
            .map(|(from, bytes)| WrittenRun { from: *from, bytes })
            .collect();
        list::serialize(&all, serializer)
    }

    pub(in crate::control) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(SeqNumber, Vec<u8>)>, D::Error> {
        let read: Vec<ReadRun> = list::deserialize(deserializer)?;
        Ok(read.into_iter().map(|run| (run.from, run.bytes)).collect())
    }
}

/// Addresses to which clients connect: IPv6, or IPv4 in the mapped form.
pub(crate) mod addresses {
    use super::*;
    use crate::control::framed::list;
    use core::net::{IpAddr, Ipv6Addr, SocketAddr};

    #[derive(Serialize, Deserialize)]
    struct Address {
        ip: [u8; 16],
        port: u16,
    }

    pub(crate) fn serialize<S: Serializer>(
        addresses: &[SocketAddr],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let address = |address: &SocketAddr| {
            let ip = match address.ip() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let (ip, port) = (ip.octets(), address.port());
            Address { ip, port }
        };
        let all: Vec<Address> = addresses.iter().map(address).collect();
        list::serialize(&all, serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<SocketAddr>, D::Error> {
        let read: Vec<Address> = list::deserialize(deserializer)?;
        let address = |Address { ip, port }| {
            let ip = IpAddr::V6(Ipv6Addr::from(ip)).to_canonical();
            SocketAddr::new(ip, port)
        };
        Ok(read.into_iter().map(address).collect())
    }
}
