//! Turns whose records are in the store.

use libbpf_rs::ProgramInput;
use objects::{plane::StoreKind, timestamp::StateBits};
use wire::{FlowKey, SeqNumber};

use super::{MemberPlane, ObjectCopy, ObjectRing, abi, map};
use crate::{
    abi::Abi,
    attach,
    error::{DataplaneError, MapContext},
};

impl MemberPlane {
    /// The store of the pool.
    ///
    /// # Errors
    /// The control program cannot be run.
    pub fn set_store(&self, kind: StoreKind) -> Result<(), DataplaneError> {
        let code = match kind {
            StoreKind::None => abi::store_kind::STORE_NONE,
            StoreKind::Unindexed => abi::store_kind::STORE_UNINDEXED,
            StoreKind::Indexed => abi::store_kind::STORE_INDEXED,
        };
        let op = abi::member_op::MEMBER_STORE;
        self.control("use the store", op, code.0.into())
    }

    /// The ring of copies of segments that begin turns and responses. Few copies wake a reader.
    ///
    /// # Errors
    /// The ring cannot be mapped.
    pub fn turns<'cb>(
        &self,
        each: impl FnMut(ObjectCopy<'_>) + 'cb,
    ) -> Result<ObjectRing<'cb>, DataplaneError> {
        ObjectRing::copies(&map(&self.object, "turns")?, each)
    }

    /// The store has confirmed the record of a turn. Returns whether the turn is under way: only then will timestamps
    /// have the state.
    ///
    /// # Errors
    /// The program cannot be run.
    pub fn set_stored(
        &self,
        key: FlowKey,
        number: u32,
        request_start: SeqNumber,
        state: StateBits,
    ) -> Result<bool, DataplaneError> {
        self.confirm(abi::store_confirmation {
            key: key.into(),
            number,
            request_start: request_start.0,
            state: state.bits(),
            has_record: 1,
            ..Default::default()
        })
    }

    /// The turn gets no record, and goes on without protection. Returns whether the turn is under way.
    ///
    /// # Errors
    /// The program cannot be run.
    pub fn give_up_record(
        &self,
        key: FlowKey,
        number: u32,
        request_start: SeqNumber,
    ) -> Result<bool, DataplaneError> {
        self.confirm(abi::store_confirmation {
            key: key.into(),
            number,
            request_start: request_start.0,
            ..Default::default()
        })
    }

    fn confirm(&self, mut request: abi::store_confirmation) -> Result<bool, DataplaneError> {
        let program = attach::program(&self.object, "store_confirmed")?;
        let input = ProgramInput {
            context_in: Some(request.as_bytes_mut()),
            ..Default::default()
        };
        program.test_run(input).doing("confirm a record")?;
        Ok(request.result == 0)
    }
}
