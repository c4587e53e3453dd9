//! Packets that the balancer's program has wrapped in UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use dataplane::{Balance, BalanceMember, BalanceSettings, BalanceTable};
use types::TableKind;

use super::{Lab, POOL_KEY};
use crate::harness::*;

/// The program of a balancer whose pool has one member.
pub(in crate::objects) struct Wrapping {
    balance: Balance,
    _place: Pinned,
}

impl Wrapping {
    /// The member has this address.
    pub(in crate::objects) fn to(address: IpAddr) -> Self {
        Self::through(address, 1)
    }

    /// Packets leave on this interface.
    pub(in crate::objects) fn through(address: IpAddr, interface: u32) -> Self {
        let place = Pinned::nowhere_else();
        let settings = BalanceSettings {
            addresses: vec![server_end(false), server_end(true)],
            key: POOL_KEY.0,
            encapsulates: true,
            xdp: None,
        };
        let mut balance = Balance::start(&settings, place.pins.clone()).expect("it loads");
        let source: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::new(10, 0, 0, 2).into(),
            IpAddr::V6(_) => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into(),
        };
        let member = BalanceMember {
            name: "web1".to_owned(),
            membership: 1,
            address,
            interface,
            source: Some(source),
            claim_port: 7701,
            draining: false,
            slot: 0,
        };
        let table = BalanceTable {
            epoch: 1,
            kind: TableKind::Maglev,
            members: vec![member],
            owners: vec![0],
        };
        balance.write_table(table).expect("memory");
        Self {
            balance,
            _place: place,
        }
    }

    /// The balancer's way with a packet: of the pool, the packet is wrapped; packets of user space and others stay.
    pub(in crate::objects) fn wrap(&self, frame: &mut Frame) {
        if frame.mark != 0 {
            return;
        }
        let program = self.balance.program_fd().expect("the program");
        let verdict = frame.run(program.as_fd()).expect("the packet is run");
        assert_ne!(verdict, Verdict::Drop, "{:x?}", frame.bytes);
        // The kernel writes the link header when the frame leaves.
        let ethertype: [u8; 2] = if frame.bytes[14] >> 4 == 6 {
            [0x86, 0xdd]
        } else {
            [8, 0]
        };
        frame.bytes[12..14].copy_from_slice(&ethertype);
    }

    pub(in crate::objects) fn balance(&self) -> &Balance {
        &self.balance
    }
}

impl Lab {
    pub(in crate::objects) fn wrapping(&self) -> &Wrapping {
        self.wrapping.as_ref().expect("a pool with encapsulation")
    }

    pub(in crate::objects) fn ingress_program(&self) -> &OwnedFd {
        &self.programs[0]
    }
}
