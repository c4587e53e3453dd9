//! Test hosts in Linux network namespaces, and the ways to break them.
//!
//! A [`Lab`] is a switch with [`Host`]s. A host has separate interfaces, addresses, ports and kernel parameters, and
//! runs real [`Process`]es, which see the machine's files. Addresses may be the same in each lab: no lab is connected
//! to another lab or to the world.
//!
//! Faults: of processes ([`Host::kill`], [`Process::kill`]), of links ([`Link::cut`], [`Link::cut_one_way`],
//! [`Link::impair`]), of the way between two hosts ([`Lab::part`]), of whole hosts ([`Host::power_off`],
//! [`Host::pause`]). A [`Capture`] keeps the frames on a host's wire.
//!
//! ```no_run
//! use lab::{Impairment, Lab, Output};
//!
//! # fn main() -> Result<(), lab::Error> {
//! let lab = Lab::new("example")?;
//! let server = lab.add_host("server")?; // 10.0.0.1, fd00::1
//! let client = lab.add_host("client")?; // 10.0.0.2, fd00::2
//! let web = server.spawn(server.command("python3").args(["-m", "http.server", "80"]), &Output::Null)?;
//! client.impair(&Impairment::with_seed(42).loss(1.0))?;
//! let capture = client.capture("tcp port 80")?;
//! let status = client.command("curl").arg("http://10.0.0.1/").status();
//! server.kill(&[web.pid()])?;
//! let seen = lab::endings(&capture.finish()?.packets, 80);
//! println!("{status:?}, and the server sent {} RSTs", seen.rst);
//! # Ok(())
//! # }
//! ```
//!
//! A lab that outlives the command that made the lab is in [`held`].
//!
//! A lab needs root, `ip` and `tc` (iproute2), `ethtool`, and `tcpdump` for captures. The kernel's netem is not
//! needed: the kernel's tbf enforces a rate where tbf exists, and a relay in the lab's process does all other work.
//!
//! Limits: a process that moves to another network namespace by setns(2) is no longer the host's, and is not killed
//! with the host. VLAN tags do not survive an impaired link.

mod address;
mod capture;
mod error;
pub mod held;
mod host;
mod impairment;
mod janitor;
mod lab;
mod line;
mod link;
mod namespace;
mod packet_socket;
pub mod pcap;
mod pipe;
mod process;
mod relay;
mod segments;
mod switch;
mod tools;
mod xdp;

pub use address::{Address, Mac};
pub use capture::{Capture, Captured};
pub use error::Error;
pub use host::Host;
pub use impairment::{Direction, Impairment};
pub use lab::Lab;
pub use link::Link;
pub use process::{Output, Process, signal};
pub use rustix::process::{Pid, Signal};
pub use segments::{Endings, TcpSegment, endings};
