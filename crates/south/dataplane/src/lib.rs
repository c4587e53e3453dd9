//! The south side wrap in the kernel.
//!
//! `bpf/replay.bpf.c` describes the programs. This crate compiles and loads the programs
//! ([`Dataplane`]), binds the programs to interfaces and tracepoints, pins objects that must
//! outlive `serve` ([`PinDirectory`]), reads the rings ([`Ring`]), injects fabricated packets into
//! the stack ([`Injector`]), and announces addresses to the neighbours ([`Announcer`]). All
//! decisions are in the crate `recovery`.

mod abi;
mod announce;
mod asking;
mod attach;
mod balance;
mod batches;
mod error;
mod inject;
mod interfaces;
mod link;
mod link_socket;
mod object;
mod objects;
mod packet_socket;
mod pins;
mod rings;
mod running;
mod step;

pub use announce::Announcer;
pub use asking::holder_of;
pub use attach::{AttachMode, detach_clsact};
pub use balance::{
    BALANCE_FORMAT, Balance, BalanceCounters, BalanceMember, BalanceSettings, BalanceTable,
    MEMBER_COUNT_MAX, XdpMode, balance_pins, pinned_balancers, remove_balancer,
};
pub use error::DataplaneError;
pub use inject::{Injector, MAX_INJECTED, Space};
pub use interfaces::{Interface, check_settings, ethernet_interfaces, netns_cookie};
pub use link::{Change, put_back};
pub use link_socket::link_socket;
pub use object::{
    AckStrategy, Adoption, Counters, Dataplane, Fence, Life, LinkSettings, MigrationError, Renewer,
    Settings, SplicePoint, probe,
};
pub use objects::{
    ENCAPSULATION_FORMAT, MemberFence, MemberPlane, MemberSettings, OBJECTS_LAYOUT_VERSION,
    ObjectCopy, ObjectEvent, ObjectEventKind, ObjectRing, encapsulation_port, member_pins,
};
pub use pins::{FORMAT, LAYOUT_VERSION, MOST_ADDRESSES, PinDirectory, pinned_services};
pub use rings::Ring;
pub use south_model::{Event, EventKind};
