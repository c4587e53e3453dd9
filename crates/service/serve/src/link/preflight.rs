//! Check of a logger, without using the logger.

use std::{net::SocketAddr, path::Path, thread, time::Duration};

use channel::KeyRing;
use dataplane::link_socket;
use protocol::control::{Attach, ReplayMode};
use rand::Rng;

use super::{
    AttachRequest, PROBE_INTERVAL,
    dial::{AttachedLogger, dial},
    prober::Prober,
    session::{mtu_of, unreachable_by_udp},
};
use crate::{
    clock,
    error::{ServeError, SystemContext},
};

/// Time for the logger's answers.
const PREFLIGHT_TIMEOUT: Duration = Duration::from_secs(3);

/// Attaches with the first key of the file, and sends probes until the link is known to carry datagrams, as a service
/// does. The logger drops the session at once. The answer is a text for the operator.
pub(crate) fn check(at: SocketAddr, key_file: &Path) -> Result<String, ServeError> {
    let keys = KeyRing::load(key_file)?;
    let socket = link_socket(at)?;
    let attach = Attach {
        service: "check".to_owned(),
        instance: rand::rng().random(),
        replay: ReplayMode::Connection,
        per_connection: 0,
        total: 0,
        connections: 0,
        inherit: false,
        udp_port: socket.local_addr().doing("ask for our own port")?.port(),
        ..Attach::PLAIN
    };
    let request = AttachRequest {
        claim: None,
        attach,
        digests: None,
    };
    let AttachedLogger {
        client, attached, ..
    } = dial(at, keys.first(), &request, PREFLIGHT_TIMEOUT)?;
    let begin = clock::now();
    let counter = u64::try_from(begin.as_micros()).unwrap_or(0);
    let mut prober = Prober::new(
        attached.keys,
        counter,
        at.is_ipv6(),
        mtu_of(&socket),
        PROBE_INTERVAL,
        begin,
    );
    let mut buffer = [0; 2048];
    while prober.mtu().is_none() && clock::now().saturating_sub(begin) < PREFLIGHT_TIMEOUT {
        for probe in prober.due(clock::now()) {
            let _ = socket.send(&probe); // too long for the interface: no answer
        }
        while let Ok(len) = socket.recv(&mut buffer) {
            prober.on_datagram(&buffer[..len], clock::now());
        }
        thread::sleep(Duration::from_millis(1));
    }
    client.shut_down();
    let mtu = prober
        .mtu()
        .ok_or_else(|| ServeError::Logger(unreachable_by_udp(at)))?;
    let round_trip = prober.round_trip().unwrap_or_default();
    Ok(format!(
        "knows the key, answers in {:.2} ms, packets of {mtu} bytes",
        round_trip.as_secs_f64() * 1000.0
    ))
}
