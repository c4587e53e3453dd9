//! Servers: well-known ones with a minimal configuration, and our own test server.
//!
//! All serve at the server's host. HTTP servers serve the same files: `/big.bin` with [`BIG_FILE_BYTES`] bytes of
//! [`pattern`], and `/small/0` to `/small/9`.

mod ftp;
mod node;
mod proxies;
mod python;
mod sessions;
mod tls;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use lab::Pid;
use rustix::process::Signal;

use crate::{Protected, Scene, binaries, pattern};

pub use ftp::{PASSIVE_PORTS, ftp, vsftpd, vsftpd_at};
pub use node::{node, node_at};
pub use proxies::{asker, asker_at, counter, haproxy, nginx_proxy, replica};
pub use python::{
    changing, chat_server, command_server, dated, diverging, forking, forking_at, greeter,
    greeter_behind, interpreter, interpreter_at, python, second_thoughts, sleeper, streamer,
    unread_close,
};
pub use sessions::{passing, sessions_at, working};
pub use tls::{Authority, lighttpd_tls, nginx_tls};

/// The port of all servers.
pub const SERVER_PORT: u16 = 8080;

/// The size of `/big.bin`.
pub const BIG_FILE_BYTES: usize = 16 << 20;

/// A server that can be started, again and again.
#[derive(Debug, Clone)]
pub struct Server {
    /// Name, for messages.
    pub name: &'static str,
    /// Addresses of the listeners.
    pub addresses: Vec<SocketAddr>,
    /// The command that starts the server in the foreground.
    pub command: Vec<String>,
    /// Additional environment variables.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Where our test server looks for the way to die.
    die_file: Option<PathBuf>,
}

/// Ways for a server to die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// SIGKILL to the main process.
    Kill,
    /// SIGSEGV to the main process.
    Segv,
    /// SIGKILL to a child of the main process.
    KillWorker,
    /// The test server calls `exit(1)`, from a thread that owns no connection.
    Exit1,
    /// The test server calls `abort`.
    Abort,
    /// A thread of the test server panics, where a panic aborts.
    PanicAbort,
    /// The test server's main thread panics, while other threads own the connections: the thread unwinds and the
    /// process exits with status 101.
    PanicMain,
}

impl Server {
    fn new(name: &'static str, addresses: Vec<SocketAddr>, command: &[&str]) -> Self {
        Self {
            name,
            addresses,
            command: command.iter().map(|&word| word.to_owned()).collect(),
            environment: Vec::new(),
            die_file: None,
        }
    }

    /// Makes the running server die.
    ///
    /// # Panics
    /// When the server cannot be killed, for instance because the server is dead already.
    #[track_caller]
    pub fn crash(&self, protected: &Protected, crash: Crash) {
        let word = match crash {
            Crash::Kill => return protected.kill_main(Signal::KILL),
            Crash::Segv => return protected.kill_main(Signal::SEGV),
            Crash::KillWorker => return protected.kill_worker(Signal::KILL),
            Crash::Exit1 => "exit",
            Crash::Abort => "abort",
            Crash::PanicAbort => "panic",
            Crash::PanicMain => "panic-main",
        };
        let file = self.die_file.as_ref().expect("only our test server can");
        let new = file.with_extension("new");
        fs::write(&new, word).expect("write the order to die");
        fs::rename(&new, file).expect("give the order to die");
    }
}

/// Sends a signal to processes. An ended process is no error.
pub fn signal_all(pids: &[Pid], signal: Signal) {
    for pid in pids {
        let _ = lab::signal(*pid, signal);
    }
}

/// Makes the files of HTTP servers, and an empty directory for uploads (`/up/`). Returns the root directory.
///
/// # Panics
/// When the files cannot be written.
pub fn site(scene: &Scene) -> PathBuf {
    let root = scene.directory().join("www");
    // Written once: HTTP servers send the times of the files.
    if !root.exists() {
        for number in 0u8..10 {
            let content = pattern(500 + usize::from(number) * 700);
            scene.write(&format!("www/small/{number}"), content);
        }
        scene.write("www/big.bin", pattern(BIG_FILE_BYTES));
    }
    let _ = fs::remove_dir_all(root.join("up"));
    fs::create_dir_all(root.join("up")).expect("make a directory");
    root
}

fn both(scene: &Scene) -> Vec<SocketAddr> {
    vec![scene.ipv4(SERVER_PORT), scene.ipv6(SERVER_PORT)]
}

/// nginx: a master and two workers; takes uploads by PUT.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn nginx(scene: &Scene) -> Server {
    nginx_at(scene, both(scene))
}

/// [`nginx`] at these addresses.
///
/// # Panics
/// As there.
#[must_use]
pub fn nginx_at(scene: &Scene, addresses: Vec<SocketAddr>) -> Server {
    let root = site(scene);
    let directory = scene.directory().display();
    let listen: String = addresses
        .iter()
        .map(|address| format!("listen {address} backlog=4096;\n"))
        .collect();
    let config = scene.write(
        "nginx.conf",
        format!(
            "user root;\nworker_processes 2;\npid {directory}/nginx.pid;\n\
             error_log {directory}/nginx.log;\ndaemon off;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\naccess_log off;\nsendfile on;\nkeepalive_timeout 120s;\n\
             keepalive_requests 100000;\nclient_body_temp_path {directory}/nginx-body;\n\
             proxy_temp_path {directory}/nginx-1;\nfastcgi_temp_path {directory}/nginx-2;\n\
             uwsgi_temp_path {directory}/nginx-3;\nscgi_temp_path {directory}/nginx-4;\n\
             server {{\n{listen}root {};\ndav_methods PUT;\nclient_max_body_size 0;\n}}\n}}\n",
            root.display()
        ),
    );
    let config = config.to_string_lossy().into_owned();
    let early = scene.directory().join("nginx-early.log");
    let command = ["nginx", "-e", &early.to_string_lossy(), "-c", &config];
    Server::new("nginx", addresses, &command)
}

/// nginx as one process, without a master.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn nginx_alone(scene: &Scene) -> Server {
    let server = nginx(scene);
    let path = scene.directory().join("nginx.conf");
    let config = fs::read_to_string(&path).expect("its configuration");
    let config = config.replace("worker_processes 2;", "master_process off;");
    fs::write(path, config).expect("write its configuration");
    server
}

/// lighttpd: one process.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn lighttpd(scene: &Scene) -> Server {
    let root = site(scene);
    let (v4, v6) = (scene.ipv4(SERVER_PORT), scene.ipv6(SERVER_PORT));
    let config = scene.write(
        "lighttpd.conf",
        format!(
            "server.document-root = \"{root}\"\nserver.bind = \"{}\"\nserver.port = {SERVER_PORT}\n\
             server.errorlog = \"{log}\"\nserver.max-keep-alive-requests = 100000\n\
             server.max-keep-alive-idle = 120\n\
             $SERVER[\"socket\"] == \"{v6}\" {{ }}\n",
            v4.ip(),
            root = root.display(),
            log = scene.directory().join("lighttpd.log").display(),
        ),
    );
    let command = ["lighttpd", "-D", "-f", &config.to_string_lossy()];
    Server::new("lighttpd", vec![v4, v6], &command)
}

/// socat: echoes, with a process for each connection. IPv4 only.
#[must_use]
pub fn socat(scene: &Scene) -> Server {
    let address = scene.ipv4(SERVER_PORT);
    let listen = format!(
        "TCP4-LISTEN:{SERVER_PORT},bind={},fork,reuseaddr,backlog=128",
        address.ip()
    );
    // `nofork`: the child becomes cat, on the socket itself. Between socket and pipes socat
    // would block for good when both directions are full.
    Server::new(
        "socat",
        vec![address],
        &["socat", &listen, "EXEC:cat,nofork"],
    )
}

/// redis without files. IPv4 only.
#[must_use]
pub fn redis(scene: &Scene) -> Server {
    redis_at(scene, scene.ipv4(SERVER_PORT))
}

/// The same at another address.
#[must_use]
pub fn redis_at(scene: &Scene, address: SocketAddr) -> Server {
    redis_in(scene.directory(), address, &["--save", ""])
}

/// [`redis`] with files in this directory, and the options for saving.
#[must_use]
pub fn redis_in(directory: &Path, address: SocketAddr, saves: &[&str]) -> Server {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let directory = directory.to_string_lossy();
    let command = [
        "redis-server",
        "--bind",
        &ip,
        "--port",
        &port,
        "--dir",
        &directory,
        "--protected-mode",
        "no",
        "--enable-debug-command",
        "yes",
    ];
    Server::new("redis", vec![address], &[&command[..], saves].concat())
}

/// memcached: several threads serve the connections. IPv4 only.
#[must_use]
pub fn memcached(scene: &Scene) -> Server {
    let address = scene.ipv4(SERVER_PORT);
    let (ip, port) = (address.ip().to_string(), SERVER_PORT.to_string());
    Server::new(
        "memcached",
        vec![address],
        &["memcached", "-u", "root", "-l", &ip, "-p", &port, "-U", "0"],
    )
}

/// mosquitto without files. IPv4 only.
///
/// # Panics
/// When the configuration cannot be written.
#[must_use]
pub fn mosquitto(scene: &Scene) -> Server {
    let address = scene.ipv4(SERVER_PORT);
    let config = scene.write(
        "mosquitto.conf",
        format!(
            "listener {SERVER_PORT} {}\nallow_anonymous true\npersistence false\nuser root\n\
             log_dest none\n",
            address.ip()
        ),
    );
    let command = ["mosquitto", "-c", &config.to_string_lossy()];
    Server::new("mosquitto", vec![address], &command)
}

/// ngircd without authentication of users. IPv4 only.
///
/// # Panics
/// When the configuration cannot be written.
#[must_use]
pub fn ngircd(scene: &Scene) -> Server {
    let address = scene.ipv4(SERVER_PORT);
    let config = scene.write(
        "ngircd.conf",
        format!(
            "[Global]\nName = irc.example.net\nInfo = test\nListen = {}\nPorts = {SERVER_PORT}\n\
             MotdPhrase = hello\n[Limits]\nMaxConnectionsIP = 0\nMaxPenaltyTime = 0\n\
             [Options]\nDNS = no\nIdent = no\nPAM = no\n",
            address.ip()
        ),
    );
    let command = ["ngircd", "-n", "-f", &config.to_string_lossy()];
    Server::new("ngircd", vec![address], &command)
}

/// The test server of this crate; `src/bin/test-server.rs` lists the commands.
#[must_use]
pub fn test_server(scene: &Scene) -> Server {
    test_server_with(scene, &[])
}

/// [`test_server`] with further arguments.
#[must_use]
pub fn test_server_with(scene: &Scene, arguments: &[&str]) -> Server {
    test_server_at(scene, both(scene), arguments)
}

/// [`test_server_with`] at these addresses.
#[must_use]
pub fn test_server_at(scene: &Scene, addresses: Vec<SocketAddr>, arguments: &[&str]) -> Server {
    let die_file = scene.directory().join("die");
    let program = binaries::test_server();
    let mut command = vec![
        program.to_string_lossy().into_owned(),
        "--die".to_owned(),
        die_file.to_string_lossy().into_owned(),
    ];
    command.extend(arguments.iter().map(|&argument| argument.to_owned()));
    command.extend(addresses.iter().map(ToString::to_string));
    Server {
        name: "test-server",
        addresses,
        command,
        environment: Vec::new(),
        die_file: Some(die_file),
    }
}
