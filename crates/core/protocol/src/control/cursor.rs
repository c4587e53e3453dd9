//! Reading and writing the primitive values of a body.

use wire::{FlowId, FlowKey, SeqNumber};

use super::ControlError;
use crate::link::{
    FLOW_KEY_LEN, HANDSHAKE_LEN, Handshake, KeySlot, LinkKey, LinkKeys, flow_key_from,
    flow_key_into,
};
use crate::{DigestSeed, UnprotectedReason};

/// Reads a body from front to back; every read is checked against its end.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// Whether all has been read.
    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Checks that all has been read.
    pub(super) const fn finish(&self) -> Result<(), ControlError> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(ControlError::Malformed("bytes behind the last field"))
        }
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], ControlError> {
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else {
            return Err(ControlError::Malformed("it ends within a field"));
        };
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ControlError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, ControlError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, ControlError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, ControlError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, ControlError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn bool(&mut self) -> Result<bool, ControlError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ControlError::Malformed("a truth value is neither 0 nor 1")),
        }
    }

    pub(super) fn flow(&mut self) -> Result<FlowId, ControlError> {
        self.u64().map(FlowId)
    }

    pub(super) fn seq(&mut self) -> Result<SeqNumber, ControlError> {
        self.u32().map(SeqNumber)
    }

    pub(super) fn flow_key(&mut self) -> Result<FlowKey, ControlError> {
        self.array().map(|bytes| flow_key_from(&bytes))
    }

    pub(super) fn handshake(&mut self) -> Result<Handshake, ControlError> {
        let malformed = ControlError::Malformed("a handshake has a value that it cannot have");
        Handshake::decode(&self.array::<HANDSHAKE_LEN>()?).map_err(|_| malformed)
    }

    pub(super) fn keys(&mut self) -> Result<LinkKeys, ControlError> {
        let unknown = ControlError::Malformed("the slot of a key is neither 0 nor 1");
        Ok(LinkKeys {
            version: crate::link::VERSION,
            slot: KeySlot::from_number(self.u8()?).ok_or(unknown)?,
            up: self.array().map(LinkKey)?,
            down: self.array().map(LinkKey)?,
        })
    }

    /// A truth value, and the number if it is true.
    pub(super) fn optional_seq(&mut self) -> Result<Option<SeqNumber>, ControlError> {
        self.bool()?.then(|| self.seq()).transpose()
    }

    /// The same.
    pub(super) fn optional_u64(&mut self) -> Result<Option<u64>, ControlError> {
        self.bool()?.then(|| self.u64()).transpose()
    }

    pub(super) fn seed(&mut self) -> Result<DigestSeed, ControlError> {
        Ok(DigestSeed([self.u64()?, self.u64()?]))
    }

    pub(super) fn reason(&mut self) -> Result<UnprotectedReason, ControlError> {
        let unknown = ControlError::Malformed("the reason for no protection is unknown");
        UnprotectedReason::from_code(self.u8()?).ok_or(unknown)
    }

    /// The code of a reason, or 0.
    pub(super) fn optional_reason(&mut self) -> Result<Option<UnprotectedReason>, ControlError> {
        if let Some(rest) = self.rest.strip_prefix(&[0]) {
            self.rest = rest;
            return Ok(None);
        }
        self.reason().map(Some)
    }

    /// All bytes that are left.
    pub(super) fn remainder(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.rest).to_vec()
    }

    /// All bytes that are left, as text.
    pub(super) fn text(&mut self) -> Result<String, ControlError> {
        text(self.remainder())
    }
}

pub(super) fn text(bytes: Vec<u8>) -> Result<String, ControlError> {
    String::from_utf8(bytes).map_err(|_| ControlError::Malformed("the text is not UTF-8"))
}

/// Appends primitive values to a body, each as [`Cursor`] reads it.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(super) const fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub(super) fn flow(&mut self, flow: FlowId) {
        self.u64(flow.0);
    }

    pub(super) fn seq(&mut self, seq: SeqNumber) {
        self.u32(seq.0);
    }

    pub(super) fn flow_key(&mut self, key: &FlowKey) {
        let mut bytes = [0; FLOW_KEY_LEN];
        flow_key_into(key, &mut bytes);
        self.bytes(&bytes);
    }

    pub(super) fn handshake(&mut self, handshake: &Handshake) {
        self.bytes(&handshake.encode());
    }

    pub(super) fn keys(&mut self, keys: &LinkKeys) {
        self.u8(keys.slot.number());
        self.bytes(&keys.up.0);
        self.bytes(&keys.down.0);
    }

    pub(super) fn optional_seq(&mut self, seq: Option<SeqNumber>) {
        self.bool(seq.is_some());
        if let Some(seq) = seq {
            self.seq(seq);
        }
    }

    pub(super) fn seed(&mut self, seed: DigestSeed) {
        for part in seed.0 {
            self.u64(part);
        }
    }

    pub(super) fn optional_u64(&mut self, value: Option<u64>) {
        self.bool(value.is_some());
        if let Some(value) = value {
            self.u64(value);
        }
    }

    pub(super) fn optional_reason(&mut self, reason: Option<UnprotectedReason>) {
        self.u8(reason.map_or(0, UnprotectedReason::code));
    }
}
