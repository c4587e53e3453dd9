//! Addresses of stores.

use std::{fmt, str::FromStr};

/// Address of a store: `valkey://[[USER]:PASSWORD@]HOST[:PORT][/DB]`, `redis://…` or `memcached://HOST[:PORT]`.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    pub(crate) protocol: Protocol,
    pub(crate) host: String,
    pub(crate) port: u16,
    scheme: Scheme,
}

/// Protocol of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Protocol {
    Resp(Login),
    Meta,
}

/// First commands of a connection.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Login {
    /// `None`: the user `default`.
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
}

/// Without the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({:?}, {})", self.user, self.database)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Valkey,
    Redis,
    Memcached,
}

impl Scheme {
    const ALL: [Self; 3] = [Self::Valkey, Self::Redis, Self::Memcached];

    const fn name(self) -> &'static str {
        match self {
            Self::Valkey => "valkey",
            Self::Redis => "redis",
            Self::Memcached => "memcached",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Valkey | Self::Redis => 6379,
            Self::Memcached => 11211,
        }
    }
}

/// Why a text is no address of a store. The text may have a password, and is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme.
    #[error("the URL of a store begins with valkey://, redis:// or memcached://")]
    Scheme,
    /// No host, or a malformed host.
    #[error("the URL of a store has no valid host: use HOST, HOST:PORT or [IPv6]:PORT")]
    Host,
    /// A malformed port.
    #[error("the port of the URL of a store is no number from 1 to 65535")]
    Port,
    /// A malformed database.
    #[error("the path of the URL of a store is no number of a database")]
    Database,
    /// A malformed password.
    #[error("the user or the password in the URL of a store has a malformed % escape")]
    Escape,
    /// A user, a password or a database for memcached.
    #[error("memcached takes no user, no password and no database")]
    Memcached,
}

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let scheme = Scheme::ALL.into_iter().find(|known| known.name() == scheme);
        let scheme = scheme.ok_or(UrlError::Scheme)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, authority),
        };
        let (host, port) = host_and_port(address)?;
        let protocol = match scheme {
            Scheme::Memcached if login.is_some() || !path.is_empty() => {
                return Err(UrlError::Memcached);
            }
            Scheme::Memcached => Protocol::Meta,
            Scheme::Valkey | Scheme::Redis => {
                let database = match path {
                    "" => 0,
                    path => path.parse().map_err(|_| UrlError::Database)?,
                };
                let (user, password) = login
                    .map(user_and_password)
                    .transpose()?
                    .unwrap_or_default();
                Protocol::Resp(Login {
                    user,
                    password,
                    database,
                })
            }
        };
        let port = port.unwrap_or(scheme.port());
        Ok(Self {
            protocol,
            host: host.to_owned(),
            port,
            scheme,
        })
    }
}

fn host_and_port(address: &str) -> Result<(&str, Option<u16>), UrlError> {
    let (host, port) = match address.strip_prefix('[') {
        Some(v6) => {
            let (host, port) = v6.split_once(']').ok_or(UrlError::Host)?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| UrlError::Host)?;
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix(':').ok_or(UrlError::Port)?),
            };
            (host, port)
        }
        None => match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        },
    };
    let is_text = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_text) {
        return Err(UrlError::Host);
    }
    let port = port.map(|port| {
        port.parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or(UrlError::Port)
    });
    Ok((host, port.transpose()?))
}

type Credentials = (Option<String>, Option<String>);

fn user_and_password(login: &str) -> Result<Credentials, UrlError> {
    let (user, password) = login.split_once(':').unwrap_or(("", login));
    let user = unescaped(user)?;
    Ok((
        Some(user).filter(|user| !user.is_empty()),
        Some(unescaped(password)?),
    ))
}

/// Percent-encoding (RFC 3986, 2.1).
fn unescaped(text: &str) -> Result<String, UrlError> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or(UrlError::Escape)?;
        let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let byte = u8::from_str_radix(digits, 16)
            .ok()
            .filter(|_| is_hexadecimal);
        bytes.push(byte.ok_or(UrlError::Escape)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| UrlError::Escape)
}

/// Without user and password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.scheme.name();
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port)?,
            false => write!(f, "{scheme}://{}:{}", self.host, self.port)?,
        }
        match &self.protocol {
            Protocol::Resp(Login { database, .. }) if *database != 0 => write!(f, "/{database}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(text: &str) -> (Option<String>, Option<String>, u32) {
        match text.parse::<StoreUrl>().unwrap().protocol {
            Protocol::Resp(Login {
                user,
                password,
                database,
            }) => (user, password, database),
            Protocol::Meta => panic!("memcached has no login"),
        }
    }

    #[test]
    fn parts_of_a_url_are_read() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(login("redis://h"), (None, None, 0));
        assert_eq!(login("valkey://:p@h:1/3"), (None, text("p"), 3));
        assert_eq!(login("redis://u:p%40%2fq@h/"), (text("u"), text("p@/q"), 0));
        assert_eq!(login("redis://u:a@b@h"), (text("u"), text("a@b"), 0));
        let url: StoreUrl = "memcached://[fd00::9]:1".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port), ("fd00::9", 1));
    }

    #[test]
    fn secrets_are_not_shown() {
        for (written, shown) in [
            ("valkey://user:secret@10.0.0.9", "valkey://10.0.0.9:6379"),
            ("redis://:secret@db:1/3", "redis://db:1/3"),
            ("memcached://[fd00::9]", "memcached://[fd00::9]:11211"),
        ] {
            let url: StoreUrl = written.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?} {:?}", url.protocol).contains("secret"));
        }
    }

    #[test]
    fn malformed_url_is_refused() {
        for (text, error) in [
            ("http://h", UrlError::Scheme),
            ("h:6379", UrlError::Scheme),
            ("redis://", UrlError::Host),
            ("redis://a b", UrlError::Host),
            ("redis://[fd00::9", UrlError::Host),
            ("redis://[h]", UrlError::Host),
            ("redis://h:0", UrlError::Port),
            ("redis://h:99999", UrlError::Port),
            ("redis://[::1]x", UrlError::Port),
            ("redis://h/x", UrlError::Database),
            ("redis://:%4@h", UrlError::Escape),
            ("redis://:%+4@h", UrlError::Escape),
            ("memcached://:p@h", UrlError::Memcached),
            ("memcached://h/1", UrlError::Memcached),
        ] {
            assert_eq!(text.parse::<StoreUrl>().err(), Some(error), "{text}");
        }
    }
}
