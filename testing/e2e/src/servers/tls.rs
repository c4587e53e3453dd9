//! Servers that speak TLS, by OpenSSL.

use std::{fs, path::PathBuf, process::Command};

use super::{SERVER_PORT, Server, lighttpd, nginx_alone};
use crate::{Scene, pair::addresses};

/// A self-signed certificate that clients trust, and the key.
#[derive(Debug, Clone)]
pub struct Authority {
    /// The server's certificate, signed with the server's own key.
    pub certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Authority {
    /// A certificate for the address of the scene's server, with a new key.
    ///
    /// # Panics
    /// When the program `openssl` cannot make the certificate.
    #[must_use]
    pub fn new(scene: &Scene) -> Self {
        let [certificate, key] = ["cert.pem", "key.pem"].map(|name| scene.directory().join(name));
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ])
            .args(["-nodes", "-days", "2", "-subj", "/CN=server", "-addext"])
            .arg(format!(
                "subjectAltName=IP:{},IP:{}",
                scene.ipv4(SERVER_PORT).ip(),
                addresses()[0].ip()
            ))
            .arg("-out")
            .arg(&certificate)
            .arg("-keyout")
            .arg(&key)
            .output()
            .expect("openssl");
        assert!(made.status.success(), "{made:?}");
        Self { certificate, key }
    }
}

/// nginx as a single process, with TLS. IPv4 only.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn nginx_tls(scene: &Scene, authority: &Authority) -> Server {
    let server = nginx_alone(scene);
    let path = scene.directory().join("nginx.conf");
    let config = fs::read_to_string(&path).expect("its configuration");
    let tls = format!(
        "server {{\nssl_protocols TLSv1.2 TLSv1.3;\nssl_certificate {};\nssl_certificate_key {};\n",
        authority.certificate.display(),
        authority.key.display()
    );
    let config = config
        .replace("server {\n", &tls)
        .replace(" backlog=4096;", " ssl backlog=4096;");
    fs::write(path, config).expect("write its configuration");
    Server {
        name: "nginx-tls",
        ..server
    }
}

/// lighttpd with TLS. IPv4 only.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn lighttpd_tls(scene: &Scene, authority: &Authority) -> Server {
    let server = lighttpd(scene);
    let path = scene.directory().join("lighttpd.conf");
    let mut config = fs::read_to_string(&path).expect("its configuration");
    config += &format!(
        "server.modules += (\"mod_openssl\")\nssl.engine = \"enable\"\nssl.pemfile = \"{}\"\nssl.privkey = \"{}\"\n",
        authority.certificate.display(),
        authority.key.display()
    );
    fs::write(path, config).expect("write its configuration");
    Server {
        name: "lighttpd-tls",
        ..server
    }
}
