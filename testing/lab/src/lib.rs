//! Test hosts in Linux network namespaces, and the ways to break them.
//!
//! A [`Lab`] is a switch with [`Host`]s on it. A host has its own interfaces, addresses,
//! ports and kernel parameters, and runs real [`Process`]es, which see the machine's files.
//! Addresses may be the same in each lab: nothing connects two labs, or a lab with the
//! world.
//!
//! What breaks: processes ([`Host::kill`], [`Process::kill`]), links ([`Link::cut`],
//! [`Link::cut_one_way`], [`Link::impair`]), the way between two hosts ([`Lab::part`]), whole
//! hosts ([`Host::power_off`], [`Host::pause`]). What is seen on a host's wire is kept by a
//! [`Capture`].
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
//! A lab that outlives the command that made it is in [`held`].
//!
//! It needs root, `ip` and `tc` (iproute2), `ethtool`, and `tcpdump` for captures. It does not
//! need the kernel's netem: a rate is kept by the kernel's tbf where it is there, all else is
//! done by a relay in the lab's process.
//!
//! Limits: a process that moves to yet another network namespace is no longer the host's,
//! and is not killed with it. VLAN tags do not survive an impaired link.

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
