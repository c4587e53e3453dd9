//! The servers of files, and an ordinary configuration of each.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;

use super::PACED_RATE;
use crate::nginx;

/// An unmodified server of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebServer {
    /// nginx with two workers.
    Nginx,
    /// The same with [`PACED_RATE`], and with the name of the host in the field `X-Server` of each response.
    PacedNginx,
    /// Apache with the event MPM. Its workers run as `nobody`.
    Apache,
    /// lighttpd.
    Lighttpd,
    /// Caddy, for HTTP/1.1 without TLS.
    Caddy,
}

impl WebServer {
    /// Name of the program.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nginx | Self::PacedNginx => "nginx",
            Self::Apache => "apache",
            Self::Lighttpd => "lighttpd",
            Self::Caddy => "caddy",
        }
    }

    /// The command that serves `directory/www` in the foreground, at this address. Writes the configuration.
    pub(super) fn command(
        self,
        directory: &Path,
        at: SocketAddr,
        host: &str,
    ) -> Result<Vec<String>> {
        let path = directory.join(format!("{}.conf", at.ip()));
        let file = path.to_string_lossy().into_owned();
        let home = format!("HOME={}", directory.display());
        let (configuration, words) = match self {
            Self::Nginx => (
                nginx::configuration(directory, &[at]),
                vec!["nginx", "-g", "daemon off;", "-c", &file],
            ),
            Self::PacedNginx => (
                nginx::paced(directory, at, host, PACED_RATE),
                vec!["nginx", "-g", "daemon off;", "-c", &file],
            ),
            Self::Apache => (
                apache(directory, at),
                vec!["apache2", "-D", "FOREGROUND", "-f", &file],
            ),
            Self::Lighttpd => (lighttpd(directory, at), vec!["lighttpd", "-D", "-f", &file]),
            // The state of Caddy is below HOME.
            Self::Caddy => (
                caddy(directory, at),
                vec![
                    "env",
                    "-u",
                    "XDG_CONFIG_HOME",
                    "-u",
                    "XDG_DATA_HOME",
                    &home,
                    "caddy",
                    "run",
                    "--config",
                    &file,
                    "--adapter",
                    "caddyfile",
                ],
            ),
        };
        fs::write(&path, configuration)?;
        Ok(words.into_iter().map(str::to_owned).collect())
    }
}

/// An ordinary lighttpd for files.
fn lighttpd(directory: &Path, at: SocketAddr) -> String {
    let directory = directory.display();
    format!(
        "server.document-root = \"{directory}/www\"\nserver.bind = \"{}\"\nserver.port = {}\nserver.errorlog = \"{directory}/error.log\"\n\
         index-file.names = ( \"index.html\" )\n\
         server.max-keep-alive-requests = 100000\nserver.max-keep-alive-idle = 3600\netag.use-inode = \"disable\"\n\
         mimetype.assign = ( \".html\" => \"text/html\", \"\" => \"application/octet-stream\" )\n",
        at.ip(),
        at.port()
    )
}

/// An ordinary Apache for files, with the modules of Debian's package.
fn apache(directory: &Path, at: SocketAddr) -> String {
    let directory = directory.display();
    format!(
        "ServerRoot /usr/lib/apache2
ServerName pool
Listen {at}
PidFile {directory}/apache.pid
ErrorLog {directory}/error.log
DefaultRuntimeDir {directory}
LoadModule mpm_event_module modules/mod_mpm_event.so
LoadModule authz_core_module modules/mod_authz_core.so
LoadModule dir_module modules/mod_dir.so
LoadModule mime_module modules/mod_mime.so
User nobody
Group nogroup
TypesConfig /dev/null
AddType text/html .html
DocumentRoot {directory}/www
FileETag MTime Size
KeepAliveTimeout 3600
MaxKeepAliveRequests 0
<Directory />
    Options FollowSymLinks
    Require all granted
</Directory>
"
    )
}

/// An ordinary Caddy for files.
fn caddy(directory: &Path, at: SocketAddr) -> String {
    let directory = directory.display();
    format!(
        "{{
    admin off
    auto_https off
    grace_period 1s
    servers {{
        protocols h1
    }}
}}
http://:{} {{
    bind {}
    root * {directory}/www
    file_server
}}
",
        at.port(),
        at.ip()
    )
}
