//! TLS servers: the next incarnation knows the session keys of each client, and no other process does.

use std::{
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use e2e::{
    Scene, Seed, assert_same_bytes,
    clients::curl,
    exchange::assert_all_recovered,
    pattern,
    servers::{Authority, BIG_FILE_BYTES, SERVER_PORT, Server, lighttpd_tls, nginx_tls},
};

use super::{STATEFUL_REQUIRE, kill_repeatedly};

/// Requests consecutive files in a single session until the end, and compares each file. In between, a new connection
/// resumes the session, which needs the server's own keys.
const CLIENT_SCRIPT: &str = r#"
import http.client, os, ssl, sys
host, port, certificate, root, ends, version = sys.argv[1:]
context = ssl.create_default_context(cafile=certificate)
context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
small = [open(f"{root}/small/{number}", "rb").read() for number in range(10)]
def get(connection, number):
    connection.request("GET", f"/small/{number % 10}")
    response = connection.getresponse()
    assert response.status == 200, response.status
    body = response.read()
    assert body == small[number % 10], f"{len(body)} bytes"
class Resuming(http.client.HTTPSConnection):
    session = None
    def connect(self):
        http.client.HTTPConnection.connect(self)
        self.sock = context.wrap_socket(self.sock, server_hostname=host, session=self.session)
kept = http.client.HTTPSConnection(host, int(port), context=context)
kept.connect()
socket = kept.sock
session, count, resumed = None, 0, 0
while resumed < 2 or not os.path.exists(ends):
    get(kept, count)
    assert kept.sock is socket, "it is another connection"
    count += 1
    if count % 20 == 0:
        other = Resuming(host, int(port))
        other.session = session
        get(other, count)
        assert session is None or other.sock.session_reused, "the session is not known any more"
        resumed += session is not None
        session = other.sock.session
        other.close()
kept.close()
print(count, resumed)
"#;

/// Downloads consecutive big files, each on a new connection, slowly enough for a kill in the middle.
fn download(scene: &Scene, from: SocketAddr, authority: &Authority, big: &[u8], ends: &AtomicBool) {
    let certificate = authority.certificate.to_string_lossy();
    let url = format!("https://{from}/big.bin");
    while !ends.load(Ordering::Relaxed) {
        let arguments = ["--cacert", &certificate, "--limit-rate", "30M", &url];
        let got = curl(scene, &arguments);
        assert!(got.status.success(), "{:?}", got.stderr);
        assert_same_bytes("curl", big, &got.stdout);
    }
}

/// Small files, again and again, until there is a file with that name.
fn ask(scene: &Scene, address: SocketAddr, authority: &Authority, version: &str, ends: &Path) {
    let script = scene.write(&format!("client-{version}.py"), CLIENT_SCRIPT);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let root = scene.directory().join("www");
    let arguments = [
        &script.to_string_lossy(),
        ip.as_str(),
        &port,
        &authority.certificate.to_string_lossy(),
        &root.to_string_lossy(),
        &ends.to_string_lossy(),
        version,
    ];
    let finished = scene.on_client("/usr/bin/python3", &arguments);
    assert!(finished.status.success(), "{version}: {finished:?}");
    let said = String::from_utf8_lossy(&finished.stdout).into_owned();
    let counts: Vec<u32> = said
        .split_whitespace()
        .map(|word| word.parse().expect("a number"))
        .collect();
    assert!(counts.iter().all(|count| *count > 0), "{version}: {said}");
}

/// Clients of both kinds, while something else is done.
pub(super) fn use_all(
    scene: &Scene,
    to: SocketAddr,
    authority: &Authority,
    meanwhile: impl FnOnce(),
) {
    let (ends, big) = (&AtomicBool::new(false), &pattern(BIG_FILE_BYTES));
    let end_file = &scene.directory().join("ends");
    thread::scope(|scope| {
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.push(scope.spawn(move || download(scene, to, authority, big, ends)));
        }
        for version in ["TLSv1_2", "TLSv1_3"] {
            clients.push(scope.spawn(move || ask(scene, to, authority, version, end_file)));
        }
        meanwhile();
        ends.store(true, Ordering::Relaxed);
        scene.write("ends", "");
        for client in clients {
            client.join().expect("a client");
        }
    });
}

fn sessions_survive_kill(label: &str, make: fn(&Scene, &Authority) -> Server) {
    let scene = Scene::new(label);
    let authority = Authority::new(&scene);
    let server = scene.protect_with(&make(&scene, &authority), &STATEFUL_REQUIRE);
    let seed = &mut Seed::choose(label);
    use_all(&scene, scene.ipv4(SERVER_PORT), &authority, || {
        kill_repeatedly(&server, 6, seed);
    });
    assert_all_recovered(&server);
}

#[test]
fn nginx_tls_sessions_survive_kill() {
    sessions_survive_kill("nginxtls", nginx_tls);
}

#[test]
fn lighttpd_tls_sessions_survive_kill() {
    sessions_survive_kill("lighttls", lighttpd_tls);
}
