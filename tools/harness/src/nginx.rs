//! The nginx that demo and bench protect, and nginx as a proxy.

use std::fmt::Write as _;
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

/// The same for downloads that take a while: each response has the name of the server in the field `X-Server`, and at
/// most so many bytes a second, in small parts rather than once a second.
pub fn paced(directory: &Path, address: SocketAddr, name: &str, bytes_per_second: u64) -> String {
    let directives = format!(
        "add_header X-Server {name};\n        limit_rate {bytes_per_second};\n        sendfile_max_chunk 64k;"
    );
    configuration(directory, &[address]).replace("dav_methods PUT;", &directives)
}

/// A proxy in front of these servers, as quick to notice and as ready to try the next server as possible. Responses
/// are buffered, which is the default: a response that is in the proxy as a whole survives the death of its server.
pub fn proxy(directory: &Path, address: SocketAddr, servers: &[SocketAddr]) -> String {
    let mut upstream = String::from("    upstream servers {\n        least_conn;\n");
    for server in servers {
        // Writing to a string cannot fail.
        let _ = writeln!(upstream, "        server {server};");
    }
    let location = "location / {
            proxy_pass http://servers;
            proxy_http_version 1.1;
            proxy_connect_timeout 200ms;
            proxy_send_timeout 1s;
            proxy_read_timeout 1s;
            proxy_next_upstream error timeout invalid_header http_500 http_502 http_503 http_504;
            proxy_next_upstream_tries 5;
        }";
    configuration(directory, &[address])
        .replace(
            "    server {\n",
            &format!("{upstream}    }}\n    server {{\n"),
        )
        .replace("dav_methods PUT;", location)
}
