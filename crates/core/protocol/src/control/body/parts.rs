//! What is in several bodies, or is long.

use crate::control::cursor::{Cursor, Writer};
use crate::control::{
    Attach, ClientFin, ControlError, Edition, KeptImage, RecordSummary, Recorded, ReplayMode,
    Resume, Statistics,
};

/// Reads items until the body ends.
pub(in crate::control) fn until_the_end<T>(
    body: &mut Cursor<'_>,
    mut read: impl FnMut(&mut Cursor<'_>) -> Result<T, ControlError>,
) -> Result<Vec<T>, ControlError> {
    let mut items = Vec::new();
    while !body.is_empty() {
        items.push(read(body)?);
    }
    Ok(items)
}

/// How long the stream of a process is.
pub(super) fn stream(body: &mut Cursor<'_>) -> Result<(u32, u64), ControlError> {
    Ok((body.u32()?, body.u64()?))
}

pub(super) fn encode_streams(streams: &[(u32, u64)], body: &mut Writer<'_>) {
    for (process, length) in streams {
        body.u32(*process);
        body.u64(*length);
    }
}

impl Edition {
    pub(super) fn encode(edition: Option<Self>, body: &mut Writer<'_>) {
        body.bool(edition.is_some());
        if let Some(Self { record, history }) = edition {
            body.u64(record);
            body.u64(history);
        }
    }

    pub(super) fn decode(body: &mut Cursor<'_>) -> Result<Option<Self>, ControlError> {
        Ok(match body.bool()? {
            true => Some(Self {
                record: body.u64()?,
                history: body.u64()?,
            }),
            false => None,
        })
    }
}

impl KeptImage {
    pub(super) fn encode(image: Option<Self>, body: &mut Writer<'_>) {
        body.bool(image.is_some());
        if let Some(image) = image {
            body.u64(image.number);
            body.u64(image.length);
            body.u64(image.base);
            body.u32(image.processes);
        }
    }

    pub(super) fn decode(body: &mut Cursor<'_>) -> Result<Option<Self>, ControlError> {
        Ok(match body.bool()? {
            true => Some(Self {
                number: body.u64()?,
                length: body.u64()?,
                base: body.u64()?,
                processes: body.u32()?,
            }),
            false => None,
        })
    }
}

impl Attach {
    pub(super) fn encode(&self, body: &mut Writer<'_>) {
        body.u64(self.instance);
        body.u8(self.replay.code());
        body.u64(self.per_connection);
        body.u64(self.total);
        body.u32(self.connections);
        body.u16(self.udp_port);
        body.bool(self.inherit);
        body.bytes(self.service.as_bytes());
    }

    pub(super) fn decode(body: &mut Cursor<'_>) -> Result<Self, ControlError> {
        let unknown = ControlError::Malformed("how much is to be replayed is unknown");
        Ok(Self {
            instance: body.u64()?,
            replay: ReplayMode::from_code(body.u8()?).ok_or(unknown)?,
            per_connection: body.u64()?,
            total: body.u64()?,
            connections: body.u32()?,
            udp_port: body.u16()?,
            inherit: body.bool()?,
            service: body.text()?,
        })
    }
}

impl Resume {
    pub(super) fn encode(&self, body: &mut Writer<'_>) {
        body.flow(self.flow);
        body.flow_key(&self.key);
        body.seq(self.client_isn);
        body.seq(self.server_isn);
        body.seq(self.instream);
        body.seq(self.outstream);
        body.handshake(&self.handshake);
    }

    pub(super) fn decode(body: &mut Cursor<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            flow: body.flow()?,
            key: body.flow_key()?,
            client_isn: body.seq()?,
            server_isn: body.seq()?,
            instream: body.seq()?,
            outstream: body.seq()?,
            handshake: body.handshake()?,
        })
    }
}

impl Recorded {
    pub(super) fn encode(&self, body: &mut Writer<'_>) {
        self.beginning.encode(body);
        body.u64(self.acknowledged);
        body.u32(self.tsval);
        body.u32(self.tsecr);
    }

    pub(super) fn decode(body: &mut Cursor<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            beginning: Resume::decode(body)?,
            acknowledged: body.u64()?,
            tsval: body.u32()?,
            tsecr: body.u32()?,
        })
    }
}

impl RecordSummary {
    /// Without `has_doubt` as version 7 says it.
    pub(super) fn encode(&self, body: &mut Writer<'_>, has_doubt: bool) {
        body.flow(self.flow);
        body.seq(self.client_isn);
        body.seq(self.server_isn);
        body.seq(self.start);
        body.seq(self.stable_seq);
        body.optional_seq(self.client_fin.map(|fin| fin.seq));
        if let Some(fin) = self.client_fin {
            body.seq(fin.heard);
        }
        body.seq(self.turn_instream);
        body.seq(self.turn_outstream);
        for answer in self.answers {
            body.seq(answer);
        }
        body.optional_seq(self.outstream_end);
        if has_doubt {
            body.seq(self.doubt);
        }
        body.optional_reason(self.unprotected);
    }

    pub(super) fn decode(body: &mut Cursor<'_>, has_doubt: bool) -> Result<Self, ControlError> {
        let (flow, client_isn, server_isn) = (body.flow()?, body.seq()?, body.seq()?);
        let (start, stable_seq) = (body.seq()?, body.seq()?);
        Ok(Self {
            flow,
            client_isn,
            server_isn,
            start,
            stable_seq,
            client_fin: match body.optional_seq()? {
                Some(seq) => Some(ClientFin {
                    seq,
                    heard: body.seq()?,
                }),
                None => None,
            },
            turn_instream: body.seq()?,
            turn_outstream: body.seq()?,
            answers: [body.seq()?, body.seq()?],
            outstream_end: body.optional_seq()?,
            // Nobody says how far the server had read.
            doubt: match has_doubt {
                true => body.seq()?,
                false => stable_seq,
            },
            unprotected: body.optional_reason()?,
        })
    }
}

impl Statistics {
    pub(super) fn encode(&self, body: &mut Writer<'_>) {
        body.u64(self.flows);
        body.u64(self.unprotected_flows);
        body.u64(self.instream_bytes);
        body.u64(self.outstream_bytes);
        body.u64(self.held);
        body.u64(self.frames);
        body.u64(self.malformed_frames);
        body.u64(self.unknown_flow_frames);
    }

    pub(super) fn decode(body: &mut Cursor<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            flows: body.u64()?,
            unprotected_flows: body.u64()?,
            instream_bytes: body.u64()?,
            outstream_bytes: body.u64()?,
            held: body.u64()?,
            frames: body.u64()?,
            malformed_frames: body.u64()?,
            unknown_flow_frames: body.u64()?,
        })
    }
}
