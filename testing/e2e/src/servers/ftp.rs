//! FTP servers, with separate connections for control and data.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt as _, path::Path};

use super::{SERVER_PORT, Server, site};
use crate::Scene;

const FTP_SCRIPT: &str = r#"
import sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer
authorizer = DummyAuthorizer()
authorizer.add_anonymous(sys.argv[3])
FTPHandler.authorizer = authorizer
FTPServer((sys.argv[1], int(sys.argv[2])), FTPHandler).serve_forever()
"#;

/// pyftpdlib, with the files of the HTTP servers: connects to the client for a file (active mode). IPv4 only.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn ftp(scene: &Scene) -> Server {
    let root = site(scene);
    let script = scene.write("ftp/ftp.py", FTP_SCRIPT);
    let address = scene.ipv4(SERVER_PORT);
    let (ip, port) = (address.ip().to_string(), SERVER_PORT.to_string());
    let [script, root] = [&script, &root].map(|path| path.to_string_lossy());
    let command = ["/usr/bin/python3", &script, &ip, &port, &root];
    Server::new("ftp", vec![address], &command)
}

/// The first and the last port of vsftpd for the clients' data connections (passive mode).
pub const PASSIVE_PORTS: [u16; 2] = [20000, 20049];

/// vsftpd with a process for each session, and anonymous login. vsftpd serves the files of the HTTP servers, and stores
/// uploads in `/up`. `more`: additional options. IPv4 only.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn vsftpd(scene: &Scene, more: &str) -> Server {
    vsftpd_at(scene, scene.ipv4(SERVER_PORT), more)
}

/// [`vsftpd`] at this address.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn vsftpd_at(scene: &Scene, address: SocketAddr, more: &str) -> Server {
    let root = site(scene);
    make_public(&root.join("up"));
    let empty = scene.directory().join("vsftpd-empty");
    fs::create_dir_all(&empty).expect("make a directory");
    let (ip, port) = (address.ip(), address.port());
    let (root, empty) = (root.display(), empty.display());
    let [first, last] = PASSIVE_PORTS;
    let config = scene.write(
        "vsftpd.conf",
        format!(
            "listen=YES\nlisten_ipv6=NO\nlisten_address={ip}\nlisten_port={port}\nbackground=NO\n\
             anonymous_enable=YES\nlocal_enable=NO\none_process_model=YES\nanon_root={root}\n\
             write_enable=YES\nanon_upload_enable=YES\nsecure_chroot_dir={empty}\n\
             pasv_min_port={first}\npasv_max_port={last}\nanon_umask=022\n\
             connect_from_port_20=NO\n{more}\n"
        ),
    );
    let command = ["vsftpd", &config.to_string_lossy()];
    Server::new("vsftpd", vec![address], &command)
}

fn make_public(directory: &Path) {
    let all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(directory, all).expect("let everybody write there");
}
