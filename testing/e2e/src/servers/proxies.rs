//! Servers with upstream connections.

use std::net::SocketAddr;

use super::{SERVER_PORT, Server, python::LINE_LOOP_SCRIPT, redis};
use crate::Scene;

/// haproxy with a single thread, in front of an HTTP server. IPv4 only.
///
/// # Panics
/// When the configuration cannot be written.
#[must_use]
pub fn haproxy(scene: &Scene, behind: SocketAddr) -> Server {
    let address = scene.ipv4(SERVER_PORT);
    let config = scene.write(
        "haproxy.cfg",
        format!(
            "global\n  nbthread 1\ndefaults\n  mode http\n  timeout client 30s\n  timeout server 30s\n  \
             timeout connect 5s\nlisten all\n  bind {address}\n  server one {behind}\n"
        ),
    );
    let command = ["haproxy", "-db", "-f", &config.to_string_lossy()];
    Server::new("haproxy", vec![address], &command)
}

/// nginx as a single process, in front of an HTTP server, with persistent upstream connections. IPv4 only.
///
/// # Panics
/// When the configuration cannot be written.
#[must_use]
pub fn nginx_proxy(scene: &Scene, behind: SocketAddr) -> Server {
    let (address, directory) = (scene.ipv4(SERVER_PORT), scene.directory().display());
    let config = scene.write(
        "proxy.conf",
        format!(
            "user root;\nmaster_process off;\ndaemon off;\npid {directory}/proxy.pid;\n\
             error_log {directory}/proxy.log;\nevents {{ worker_connections 1024; }}\n\
             http {{\naccess_log off;\nkeepalive_timeout 120s;\nkeepalive_requests 100000;\n\
             client_body_temp_path {directory}/proxy-body;\nproxy_temp_path {directory}/proxy-1;\n\
             fastcgi_temp_path {directory}/proxy-2;\nuwsgi_temp_path {directory}/proxy-3;\n\
             scgi_temp_path {directory}/proxy-4;\n\
             upstream behind {{ server {behind}; keepalive 8; }}\n\
             server {{\nlisten {address} backlog=4096;\nlocation / {{\nproxy_pass http://behind;\n\
             proxy_http_version 1.1;\nproxy_set_header Connection \"\";\n}}\n}}\n}}\n"
        ),
    );
    let early = scene.directory().join("proxy-early.log");
    let config = config.to_string_lossy();
    let command = ["nginx", "-e", &early.to_string_lossy(), "-c", &config];
    Server::new("nginx", vec![address], &command)
}

/// redis as a replica of `master`. The replica does not write the received data to files. IPv4 only.
#[must_use]
pub fn replica(scene: &Scene, master: SocketAddr) -> Server {
    let mut server = redis(scene);
    let master = format!("{} {}", master.ip(), master.port());
    let more = ["--replicaof", &master, "--repl-diskless-load", "swapdb"];
    server.command.extend(more.map(str::to_owned));
    server
}

/// Counts in a redis, over a connection of its own, or in a [`counter`], and hashes all answers.
const ASKER_SCRIPT: &str = r#"
import hashlib, selectors, socket, sys
other, told = None, hashlib.sha256()
def open():
    if sys.argv[3] == "tcp":
        return socket.create_connection((sys.argv[4], int(sys.argv[5])))
    unix = socket.socket(socket.AF_UNIX)
    unix.connect(sys.argv[4])
    return unix
def ask_by_datagrams(line):
    there = (sys.argv[4], int(sys.argv[5]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(30)
        while True:
            try:
                asking.sendto(line, there)
                said, (ip, port) = asking.recvfrom(4096)
                assert (ip, port) == there
                return said
            except TimeoutError:
                pass
def ask(line):
    global other
    if sys.argv[3] == "udp":
        return ask_by_datagrams(line)
    while True:
        try:
            if other is None:
                other = open()
            other.sendall(line)
            answer = b""
            while not answer.endswith(b"\n"):
                more = other.recv(4096)
                if not more:
                    raise ConnectionError
                answer += more
            return answer.strip()
        except OSError:
            if other is not None:
                other.close()
            other = None
def answer(connection, line):
    said = ask(b"INCR " + line + b"\r\n")
    told.update(said)
    connection.sendall(said[1:] + b" " + told.hexdigest().encode() + b"\n")
"#;

/// A server in Python that sends a request upstream for each line of a client: answers the count and the hash of all
/// counts. `way` is the upstream server: `tcp` or `unix` for a redis, `udp` for a [`counter`]. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn asker(scene: &Scene, way: &[&str]) -> Server {
    asker_at(scene, scene.ipv4(SERVER_PORT), way)
}

/// The same at another address.
///
/// # Panics
/// As there.
#[must_use]
pub fn asker_at(scene: &Scene, address: SocketAddr, way: &[&str]) -> Server {
    let script = scene.write(
        "asker/asker.py",
        format!("{ASKER_SCRIPT}{LINE_LOOP_SCRIPT}"),
    );
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let script = script.to_string_lossy();
    let command = [&["/usr/bin/python3", "-u", &script, &ip, &port], way].concat();
    Server::new("asker", vec![address], &command)
}

const COUNTER_SCRIPT: &str = r#"
import socket, sys
there = (sys.argv[1], int(sys.argv[2]))
listener = socket.create_server(there) # which says that it is there
asked, count = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0
asked.bind(there)
while True:
    _, whose = asked.recvfrom(4096)
    count += 1
    asked.sendto(f":{count}".encode(), whose)
"#;

/// Counts the received datagrams, in Python. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn counter(scene: &Scene, address: SocketAddr) -> Server {
    let script = scene.write("counter/counter.py", COUNTER_SCRIPT);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let command = ["/usr/bin/python3", &script.to_string_lossy(), &ip, &port];
    Server::new("counter", vec![address], &command)
}
