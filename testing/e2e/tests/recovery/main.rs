//! Failures beyond the single clean kill, and the reports of `outlive`'s commands.

mod adoption;
mod commands;
mod config;
mod full_event_ring;
mod half_close;
mod history;
mod kills;
mod layouts;
mod orderly_ends;
mod repeated_execution;
mod replay;
mod server_start;
mod unkillable_server;

use std::net::TcpStream;
use std::path::PathBuf;

use e2e::clients::is_reset;
use e2e::exchange::{echoes, echoing, talks};
use e2e::servers;
use e2e::{Protected, Scene};

/// The only `connection_reset` event, and that it is of this connection and for this reason.
#[track_caller]
fn lost_only(protected: &Protected, stream: &TcpStream, reason: &str) {
    let lost = protected.wait_for("connection_reset", 1);
    let client = stream.local_addr().expect("an address").to_string();
    assert!(lost["connection"].to_string().contains(&client), "{lost}");
    assert!(lost["reason"].to_string().contains(reason), "{lost}");
    assert_eq!(
        protected.events_of("connection_reset").len(),
        1,
        "{}",
        protected.log()
    );
}

/// A server that needs a file to start, the file, and the directory for both.
fn needy(scene: &Scene) -> (servers::Server, PathBuf) {
    let file = scene.write("needed", "");
    let server = servers::test_server_with(scene, &["--need", &file.to_string_lossy()]);
    (server, file)
}
