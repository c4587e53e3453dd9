//! The connections that the balancer gives to a member.

use alloc::sync::Arc;

use protocol::pool::{PoolKey, Table};
use wire::FlowKey;

use crate::{MemberIndex, OwnerTable, flow_hash};

/// The connections of a member.
#[derive(Debug, Clone)]
pub struct OwnConnections {
    owners: Arc<OwnerTable>,
    own: MemberIndex,
    key: PoolKey,
}

impl OwnConnections {
    /// The connections of a membership. `owners`: of the same table. `None`: the table lacks the membership.
    #[must_use]
    pub fn of(
        table: &Table,
        owners: Arc<OwnerTable>,
        membership: u64,
        key: PoolKey,
    ) -> Option<Self> {
        let mut members = table.members.iter();
        let position = members.position(|member| member.membership == membership)?;
        let own = MemberIndex(u16::try_from(position).ok()?);
        Some(Self { owners, own, key })
    }

    /// Whether the balancer gives the connection to the member.
    #[must_use]
    pub fn has(&self, key: &FlowKey) -> bool {
        let hash = flow_hash(self.key, key.client(), key.server());
        self.owners.owner(hash) == Some(self.own)
    }
}
