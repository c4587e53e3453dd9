//! Numbers with units, as in command lines.

use std::{
    net::SocketAddr,
    time::{Duration, UNIX_EPOCH},
};

/// Most digits behind the point of a number of bytes.
const MOST_DIGITS: usize = 9;

/// `64MiB`, `1.5GiB`, `2GB`, `4096`: bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => {
            return Err(format!(
                "{unit:?} is no unit of bytes: use KiB, MiB, GiB (of 1024) or kB, MB, GB (of 1000)"
            ));
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let no_number = |_| format!("{text:?} does not begin with a number");
    let whole: u64 = whole.parse().map_err(no_number)?;
    let of_fraction = match fraction {
        "" if !number.contains('.') => 0,
        _ if factor == 1 => return Err(format!("{text:?}: there are no parts of a byte")),
        digits if digits.len() > MOST_DIGITS => {
            return Err(format!(
                "{text:?}: at most {MOST_DIGITS} digits behind the point"
            ));
        }
        digits => {
            let share: u64 = digits.parse().map_err(no_number)?;
            let whole: u64 = digits.bytes().map(|_| 10).product();
            u128::from(share) * u128::from(factor) / u128::from(whole)
        }
    };
    let bytes = u128::from(whole) * u128::from(factor) + of_fraction;
    u64::try_from(bytes).map_err(|_| format!("{text} is too much"))
}

/// `64 bytes`, `1.5 GB`: bytes in decimal units, for people.
pub(crate) fn bytes_in_words(bytes: u64) -> String {
    let units = [
        (1_000_000_000_000, "TB"),
        (1_000_000_000, "GB"),
        (1_000_000, "MB"),
        (1000, "kB"),
    ];
    match units.into_iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{}.{} {unit}", bytes / size, bytes % size * 10 / size),
        None if bytes == 1 => "1 byte".to_owned(),
        None => format!("{bytes} bytes"),
    }
}

/// `200us`, `500ms`, `30s`, `2min`, `1h 30min`: a duration. A bare number could mean anything.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: &str = "use us, ms, s, min or h, as in 30s or 1h 30min";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.parse::<u64>().is_ok() {
        return Err(format!("{text:?} has no unit: {UNITS}"));
    }
    humantime::parse_duration(text).map_err(|_| format!("{text:?} is no time: {UNITS}"))
}

/// The same, of a time for which everything else may wait.
pub(crate) fn moment(text: &str) -> Result<Duration, String> {
    const MOMENT_MAX: Duration = Duration::from_millis(1);
    match duration(text)? {
        time if time <= MOMENT_MAX => Ok(time),
        _ => Err(format!("{text:?} is too long: at most 1ms")),
    }
}

/// The URL of a store. The text may have a password, and is in no error.
pub(crate) fn store_url(text: &str) -> Result<String, String> {
    let url: Result<store::StoreUrl, _> = text.parse();
    url.map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

/// Addresses in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Addresses(pub(crate) Vec<SocketAddr>);

/// All of these.
pub(crate) fn all(rows: &[Addresses]) -> Vec<SocketAddr> {
    rows.iter().flat_map(|row| row.0.iter().copied()).collect()
}

/// `10.0.0.1:80`, `[fd00::1]:80`, `10.0.0.1:20000-20100`: an address and a port, or a range of ports.
pub(crate) fn addresses(text: &str) -> Result<Addresses, String> {
    let (front, last) = match text.rsplit_once('-') {
        Some((front, last)) if !last.contains(':') => (front, Some(last)),
        _ => (text, None),
    };
    let first: SocketAddr = front.parse().map_err(|_| no_address(text))?;
    let Some(last) = last else {
        return Ok(Addresses(vec![first]));
    };
    let last: u16 = last
        .parse()
        .map_err(|_| format!("{last:?} is no port: the last of a range is from 1 to 65535"))?;
    if first.port() == 0 || last < first.port() {
        let first = first.port();
        return Err(format!(
            "{first}-{last} is no range of ports: the first is at least 1, and the last not before it"
        ));
    }
    let all = first.port()..=last;
    let all = all.map(|port| SocketAddr::new(first.ip(), port));
    Ok(Addresses(all.collect()))
}

/// `10.0.0.1:80`, `[fd00::1]:80`: an address and a port.
pub(crate) fn socket(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let hint = hint(text);
        format!("{text:?} is no address and port: write 10.0.0.1:80 or [fd00::1]:80{hint}")
    })
}

fn no_address(text: &str) -> String {
    let hint = hint(text);
    format!(
        "{text:?} is no address and port: write 10.0.0.1:80, [fd00::1]:80, or a range of ports as in 10.0.0.1:20000-20100{hint}"
    )
}

fn hint(text: &str) -> String {
    let colons = text.matches(':').count();
    let host = text.split(':').next().unwrap_or_default();
    if colons > 1 && !text.starts_with('[') {
        "; an IPv6 address needs brackets".to_owned()
    } else if colons == 1 && host.contains(|c: char| c.is_ascii_alphabetic()) {
        format!("; {host:?} looks like a name: `getent ahosts {host}` tells its addresses")
    } else if text.parse::<u16>().is_ok() {
        "; a port alone is none: 127.0.0.1 is this host alone".to_owned()
    } else {
        String::new()
    }
}

/// From when on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// A time before now.
    Ago(Duration),
    /// Since 1970.
    At(Duration),
}

impl Since {
    /// Microseconds since 1970.
    pub(crate) fn unix_us(self) -> u64 {
        let at = match self {
            Self::Ago(ago) => UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(ago),
            Self::At(at) => at,
        };
        u64::try_from(at.as_micros()).unwrap_or(u64::MAX)
    }
}

/// `2h` ago, `2026-11-27`, or `2026-11-27T02:00:00Z`.
pub(crate) fn since(text: &str) -> Result<Since, String> {
    let day = || humantime::parse_rfc3339(&format!("{text}T00:00:00Z"));
    if let Ok(at) = humantime::parse_rfc3339_weak(text).or_else(|_| day()) {
        return Ok(Since::At(at.duration_since(UNIX_EPOCH).unwrap_or_default()));
    }
    let ago = duration(text).map(Since::Ago);
    ago.map_err(|why| {
        format!("{why}; or write a time of the clock (UTC): 2026-11-27, 2026-11-27T02:00:00Z")
    })
}

/// Bits a second, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) Option<u64>);

/// `10Mbit`, `1Gbit`, `500kbit`, `9600bit`, a second; `none` for no limit.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    if text == "none" {
        return Ok(Rate(None));
    }
    let (number, unit) = split(text);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "bit" => 1,
        "kbit" => 1000,
        "mbit" => 1_000_000,
        "gbit" => 1_000_000_000,
        _ => {
            return Err(format!(
                "{text:?} is no rate: use bit, kbit, Mbit or Gbit (a second), as in 10Mbit, or none"
            ));
        }
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} does not begin with a whole number"))?;
    match number.checked_mul(factor) {
        Some(0) => Err("a rate of 0 is a cut: use cut".to_owned()),
        Some(rate) => Ok(Rate(Some(rate))),
        None => Err(format!("{text} is too much")),
    }
}

/// `1`, `0.5`, `20%`: a share in percent, 0 to 100.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.trim().parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!("{text:?} is no percentage from 0 to 100")),
    }
}

/// The name of a service in a message to a logger.
pub(crate) fn service_name(text: &str) -> Result<String, String> {
    let most = protocol::control::NAME_LEN_MAX;
    match text.len() {
        0 => Err("the name is empty".to_owned()),
        len if len > most => Err(format!(
            "the name has {len} bytes, and the longest name {most} bytes"
        )),
        _ => Ok(text.to_owned()),
    }
}

/// The name of a pool: of a directory and of pins.
/// The path of an object on a server.
pub(crate) fn target(text: &str) -> Result<String, String> {
    match text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} is no path on a server: write /big.iso, without host and without blanks"
        )),
    }
}

pub(crate) fn pool_name(text: &str) -> Result<String, String> {
    let name: Result<protocol::pool::MemberName, _> = text.parse();
    match name {
        Ok(name) if !text.starts_with('.') => Ok(name.to_string()),
        _ => Err(format!(
            "{text:?} is no name of a pool: use 1 to {most} letters, digits, '.', '_' or '-', and no '.' at the beginning",
            most = protocol::pool::MemberName::LEN_MAX
        )),
    }
}

fn split(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_binary_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("2 MiB"), Ok(2 << 20));
        assert_eq!(bytes("1g"), Ok(1 << 30));
        assert!(bytes("x").is_err());
        assert!(bytes("99999999999GiB").is_err());
    }

    #[test]
    fn bytes_may_have_decimal_units_and_fractions() {
        assert_eq!(bytes("1 MB"), Ok(1_000_000));
        assert_eq!(bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(bytes("0.001kB"), Ok(1));
        for wrong in [
            "1.5.5GiB",
            ".5GiB",
            "5.GiB",
            "1.5",
            "1.x",
            "1.0000000001GB",
            "1 TB",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn host_name_differs_from_typing_error() {
        let said = |text| addresses(text).expect_err("no address");
        assert!(said("localhost:8080").contains("getent ahosts localhost"));
        assert!(!said("10.0.0.1").contains("getent"));
        assert!(!said("[fd00::x]:80").contains("getent"));
        for bare in ["fd00::1:80", "fd00::1", "::1:80"] {
            assert!(said(bare).contains("needs brackets"), "{bare}");
        }
    }

    #[test]
    fn addresses_may_be_ranges_of_ports() {
        let all = |text| {
            let all = addresses(text).expect("addresses").0;
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(all("10.0.0.1:80"), ["10.0.0.1:80"]);
        assert_eq!(all("[fd00::1]:80-81"), ["[fd00::1]:80", "[fd00::1]:81"]);
        assert_eq!(all("10.0.0.1:65535-65535"), ["10.0.0.1:65535"]);
        assert_eq!(all("10.0.0.1:1-65535").len(), 65535);
        for wrong in [
            "10.0.0.1",
            "10.0.0.1:",
            "10.0.0.1:80-",
            "10.0.0.1:80-79",
            "10.0.0.1:0-9",
            "10.0.0.1:80-65536",
            "10.0.0.1:-80",
            "10.0.0.1:80-81-82",
            "10.0.0.1-10.0.0.2:80",
            "host:80-81",
            "[fd00::1]:80-x",
        ] {
            assert!(addresses(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bad_address_has_hint() {
        let at = "[fd00::1]:80".parse().expect("an address");
        assert_eq!(socket("[fd00::1]:80"), Ok(at));
        for (wrong, hint) in [
            ("9601", "a port alone is none"),
            ("localhost:9601", "`getent ahosts localhost`"),
            ("fd00::1:80", "needs brackets"),
            (
                "10.0.0.1:80-81",
                "is no address and port: write 10.0.0.1:80",
            ),
        ] {
            let said = socket(wrong).expect_err(wrong);
            assert!(said.contains(hint), "{said}");
        }
    }

    #[test]
    fn rates_have_decimal_units() {
        assert_eq!(rate("10Mbit"), Ok(Rate(Some(10_000_000))));
        assert_eq!(rate("1gbit"), Ok(Rate(Some(1_000_000_000))));
        assert_eq!(rate("9600bit"), Ok(Rate(Some(9600))));
        assert_eq!(rate("none"), Ok(Rate(None)));
        for wrong in ["10", "10MB", "0bit", "Mbit", "1.5Mbit", "99999999999Gbit"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn service_names_have_255_bytes_at_most() {
        let longest = "n".repeat(255);
        assert_eq!(service_name(&longest), Ok(longest.clone()));
        for wrong in ["", &(longest + "n")] {
            assert!(service_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn percentages_are_shares() {
        assert_eq!(percent("0.5"), Ok(0.5));
        assert_eq!(percent("20%"), Ok(20.0));
        for wrong in ["101", "-1", "NaN", "many"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("1h 30min"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert!(duration("3").is_err_and(|said| said.contains("has no unit")));
        assert!(duration("us").is_err());
        assert_eq!(moment("1ms"), Ok(Duration::from_millis(1)));
        assert!(moment("2ms").is_err());
        assert!(duration("-1s").is_err());
    }

    #[test]
    fn times_since_when() {
        let second = Duration::from_secs(1);
        assert_eq!(since("1h"), Ok(Since::Ago(second * 3600)));
        assert_eq!(since("1970-01-02"), Ok(Since::At(second * 86400)));
        let at = since("1970-01-01T00:00:01Z");
        assert_eq!(at, Ok(Since::At(second)));
        assert_eq!(at.map(Since::unix_us), Ok(1_000_000));
        assert!(since("yesterday").is_err());
        assert!(since("12").is_err());
    }
}
