//! Changes of the state of the service and of the flows: each change is one run of the program
//! `control` (`control.h`). Expected replayed output is written into a map directly.

use std::{io, time::Duration};

use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use south_model::{Digest, Expect, Flow};
use wire::{FlowId, FlowKey, SeqNumber};

use super::Dataplane;
use crate::{
    abi::{self, Abi},
    attach,
    error::{DataplaneError, MapContext},
};

/// Where a replay begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplicePoint {
    /// Sequence number of the fabricated SYN; replay begins at the next number.
    pub instream: SeqNumber,
    /// Client-space number of the first byte that the new server will send.
    pub outstream: SeqNumber,
    /// Compare the replayed outstream up to here.
    pub verify_end: SeqNumber,
}

impl Dataplane {
    pub(super) fn control(
        &self,
        what: &'static str,
        op: abi::control_op,
        fill: impl FnOnce(&mut abi::control),
    ) -> Result<abi::control, DataplaneError> {
        let mut request = abi::control {
            op: op.0,
            ..Default::default()
        };
        fill(&mut request);
        let program = attach::program(&self.object, "control")?;
        let input = ProgramInput {
            context_in: Some(request.as_bytes_mut()),
            ..Default::default()
        };
        program.test_run(input).doing(what)?;
        match request.result {
            0 => Ok(request),
            error => Err(DataplaneError::Control {
                what,
                source: io::Error::from_raw_os_error(-error),
            }),
        }
    }

    /// `serve` is alive.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn heartbeat(&self) -> Result<(), DataplaneError> {
        self.control("heartbeat", abi::control_op::CONTROL_HEARTBEAT, |_| ())
            .map(drop)
    }

    /// Shut the gate now.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn gate(&self) -> Result<(), DataplaneError> {
        self.control("shut the gate", abi::control_op::CONTROL_GATE, |_| ())
            .map(drop)
    }

    /// Begins a new incarnation of the service: the gate opens for the new sockets, and for each
    /// connection after the splice.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn new_incarnation(&self) -> Result<(), DataplaneError> {
        self.control(
            "new incarnation",
            abi::control_op::CONTROL_INCARNATION,
            |_| (),
        )
        .map(drop)
    }

    /// The recovery is over: unknown segments get an ordinary RST again.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn recovered(&self) -> Result<(), DataplaneError> {
        self.control(
            "end of recovery",
            abi::control_op::CONTROL_RECOVERED,
            |_| (),
        )
        .map(drop)
    }

    /// Whether the service is asked to end: then deaths are not crashes.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn stopping(&self, is: bool) -> Result<(), DataplaneError> {
        self.control("stopping", abi::control_op::CONTROL_STOPPING, |c| {
            c.argument = u64::from(is);
        })
        .map(drop)
    }

    /// Write frames of this version of `protocol::mirror` into the ring from now on. Older frames may be in the ring.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn set_mirror_version(&self, version: u8) -> Result<(), DataplaneError> {
        self.control(
            "set the version of mirror frames",
            abi::control_op::CONTROL_MIRROR_VERSION,
            |c| c.argument = u64::from(version),
        )
        .map(drop)
    }

    /// Names the main process, by the number in the PID namespace of `serve`.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn main_process(&self, pid: u32) -> Result<(), DataplaneError> {
        let pid = u64::from(pid);
        self.control(
            "name the main process",
            abi::control_op::CONTROL_MAIN,
            |c| c.argument = pid,
        )
        .map(drop)
    }

    /// Prepares the flow for the fabricated SYN.
    ///
    /// # Errors
    /// The flow with this number is gone (`ENOENT`).
    pub fn splice(
        &self,
        key: FlowKey,
        flow: FlowId,
        point: SplicePoint,
    ) -> Result<(), DataplaneError> {
        self.control("splice", abi::control_op::CONTROL_SPLICE, |c| {
            c.key = key.into();
            c.flow_id = flow.0;
            c.instream = point.instream.0;
            c.outstream = point.outstream.0;
            c.verify_end = point.verify_end.0;
        })
        .map(drop)
    }

    /// As [`Dataplane::splice`], for a socket at the client's numbers (the socket goes on behind
    /// `instream`, and with `outstream`), with a window of `window` bytes: no SYN-ACK is awaited.
    ///
    /// # Errors
    /// There is no such flow, or the control program cannot be run.
    pub fn graft(
        &self,
        key: FlowKey,
        flow: FlowId,
        point: SplicePoint,
        window: u32,
    ) -> Result<(), DataplaneError> {
        self.control("graft", abi::control_op::CONTROL_GRAFT, |c| {
            c.key = key.into();
            c.flow_id = flow.0;
            c.instream = point.instream.0;
            c.outstream = point.outstream.0;
            c.verify_end = point.outstream.0;
            c.argument = window.into();
        })
        .map(drop)
    }

    /// Another host's output to the client has the digest `acked`; `turn` covers the output before
    /// the part that a replay repeats. Changes only a restored flow that has not been spliced
    /// since.
    ///
    /// # Errors
    /// The flow with this number is gone (`ENOENT`).
    pub fn inherit_digest(
        &self,
        key: FlowKey,
        flow: FlowId,
        acked: Digest,
        turn: Digest,
    ) -> Result<(), DataplaneError> {
        self.control(
            "inherit the digest of another host",
            abi::control_op::CONTROL_INHERIT_DIGEST,
            |c| {
                c.key = key.into();
                c.flow_id = flow.0;
                c.digest = acked.into();
                c.turn = turn.into();
            },
        )
        .map(drop)
    }

    /// The client's next request waits until the server has repeated the output that `digest`
    /// covers.
    ///
    /// # Errors
    /// The flow with this number is gone (`ENOENT`).
    pub fn want(&self, key: FlowKey, flow: FlowId, digest: Digest) -> Result<(), DataplaneError> {
        self.control("compare at a request", abi::control_op::CONTROL_WANT, |c| {
            c.key = key.into();
            c.flow_id = flow.0;
            c.digest = digest.into();
        })
        .map(drop)
    }

    /// Numbers connections from `first` on, or higher: lower numbers are in use elsewhere.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn number_from(&self, first: FlowId) -> Result<(), DataplaneError> {
        self.control("number flows", abi::control_op::CONTROL_NUMBERS, |c| {
            c.argument = first.0;
        })
        .map(drop)
    }

    /// Adds a flow from a record ([`south_model::restored_flow`]), or from a socket, instead of
    /// from a handshake. Uses only the fields of `flow` that `restored_flow` fills.
    ///
    /// # Errors
    /// The map is full, or a connection with these ends is known.
    pub fn restore(&self, key: FlowKey, flow: &Flow) -> Result<(), DataplaneError> {
        let key = abi::flow_key::from(key);
        let value = abi::flow::from(flow);
        self.maps
            .flows
            .update(key.as_bytes(), value.as_bytes(), MapFlags::NO_EXIST)
            .doing("restore a connection")
    }

    /// A number for a connection whose handshake the programs do not know, and the present life of the service.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn number(&self) -> Result<(FlowId, u32), DataplaneError> {
        let op = abi::control_op::CONTROL_NUMBER;
        let reply = self.control("number a connection", op, |_| ())?;
        let life = u32::try_from(reply.argument).unwrap_or(u32::MAX);
        Ok((FlowId(reply.flow_id), life))
    }

    /// The record of a restored connection begins, if this host keeps the record.
    ///
    /// # Errors
    /// There is no such flow, or the ring is full.
    pub fn opened(&self, key: FlowKey, flow: FlowId) -> Result<(), DataplaneError> {
        self.control("open a record", abi::control_op::CONTROL_OPENED, |c| {
            c.key = key.into();
            c.flow_id = flow.0;
        })
        .map(drop)
    }

    /// Forget a flow.
    ///
    /// # Errors
    /// The flow with this number is gone already (`ENOENT`).
    pub fn abandon(&self, key: FlowKey, flow: FlowId) -> Result<(), DataplaneError> {
        self.control("abandon a flow", abi::control_op::CONTROL_ABANDON, |c| {
            c.key = key.into();
            c.flow_id = flow.0;
        })
        .map(drop)
    }

    /// The flow has no complete record any more; `reason` as in `protocol::UnprotectedReason`.
    ///
    /// # Errors
    /// The flow with this number is gone (`ENOENT`).
    pub fn unprotect(&self, key: FlowKey, flow: FlowId, reason: u8) -> Result<(), DataplaneError> {
        self.control(
            "unprotect a flow",
            abi::control_op::CONTROL_UNPROTECT,
            |c| {
                c.key = key.into();
                c.flow_id = flow.0;
                c.argument = u64::from(reason);
            },
        )
        .map(drop)
    }

    /// The logger takes no record of the handshake with this number: the next SYN-ACK goes to the
    /// client at once.
    ///
    /// Returns the connection.
    ///
    /// # Errors
    /// There is no handshake with this number (`ENOENT`).
    pub fn refuse(&self, flow: FlowId, reason: u8) -> Result<FlowKey, DataplaneError> {
        let refused = self.control("refuse a handshake", abi::control_op::CONTROL_REFUSE, |c| {
            c.flow_id = flow.0;
            c.argument = u64::from(reason);
        })?;
        Ok(FlowKey::from(refused.key))
    }

    /// Asks the logger, through the ring, for an answer after all frames up to here.
    ///
    /// # Errors
    /// The ring is full.
    pub fn barrier(&self, token: u64) -> Result<(), DataplaneError> {
        self.control("barrier", abi::control_op::CONTROL_BARRIER, |c| {
            c.argument = token
        })
        .map(drop)
    }

    /// Forget flows that have been closed for longer than `age`; returns how many.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn sweep(&self, age: Duration) -> Result<u64, DataplaneError> {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        self.control("sweep", abi::control_op::CONTROL_SWEEP, |c| {
            c.argument = age
        })
        .map(|reply| reply.swept)
    }

    /// Stores the expected replayed outstream of `flow`.
    ///
    /// # Errors
    /// The map is full.
    pub fn expect(&self, flow: FlowId, chunks: &[(u32, Expect)]) -> Result<(), DataplaneError> {
        let map = &self.maps.expected;
        for (chunk, expect) in chunks {
            let key = expect_key(flow, *chunk);
            let value = abi::expect {
                bytes: expect.bytes,
                strict: expect.strict,
                soft: expect.soft,
            };
            map.update(key.as_bytes(), value.as_bytes(), MapFlags::ANY)
                .doing("write what a replay must look like")?;
        }
        Ok(())
    }

    /// Removes expected chunks. Missing chunks are no error.
    ///
    /// # Errors
    /// The map cannot be changed.
    pub fn forget_expected(
        &self,
        flow: FlowId,
        chunks: impl Iterator<Item = u32>,
    ) -> Result<(), DataplaneError> {
        let map = &self.maps.expected;
        for chunk in chunks {
            match map.delete(expect_key(flow, chunk).as_bytes()) {
                Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                    return Err(error).doing("remove what a replay must look like");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn expect_key(flow: FlowId, chunk: u32) -> abi::expect_key {
    abi::expect_key {
        flow_id: flow.0,
        chunk,
        pad: 0,
    }
}
