//! The nginx that demo and bench protect.

use std::net::SocketAddr;
use std::path::Path;

/// An ordinary configuration, except that all paths are in `directory`, and that connections may stay without a limit.
pub fn configuration(directory: &Path, addresses: &[SocketAddr]) -> String {
    let directory = directory.display();
    let listen: String = addresses
        .iter()
        .map(|address| format!("        listen {address};\n"))
        .collect();
    format!(
        "user root;
worker_processes 2;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 32768; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 3600s;
    keepalive_requests 1000000000;
    client_max_body_size 0;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
{listen}        root {directory}/www;
        dav_methods PUT;
    }}
}}
"
    )
}

/// The same for a single process, with TLS: certificate and key are `cert.pem` and `key.pem` in `directory`.
pub fn with_tls(directory: &Path, address: SocketAddr) -> String {
    let plain = format!("listen {address};");
    let place = directory.display();
    let tls = format!(
        "listen {address} ssl;\n        ssl_certificate {place}/cert.pem;\n        ssl_certificate_key {place}/key.pem;"
    );
    configuration(directory, &[address])
        .replace("worker_processes 2;", "master_process off;")
        .replace(&plain, &tls)
}
