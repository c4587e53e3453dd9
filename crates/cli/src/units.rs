//! Numbers with units, as people write them.

use std::{net::SocketAddr, time::Duration};

/// `64MiB`, `1GiB`, `4096`: bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return Err(format!("{unit:?} is no unit of bytes: use KiB, MiB or GiB")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} does not begin with a number"))?;
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("{text} is too much"))
}

/// `200us`, `500ms`, `30s`, `2min`: a duration. A bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} does not begin with a number"))?;
    match unit {
        "us" => Ok(Duration::from_micros(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "" | "s" => Ok(Duration::from_secs(number)),
        "min" => Ok(Duration::from_secs(number.saturating_mul(60))),
        _ => Err(format!("{unit:?} is no unit of time: use us, ms, s or min")),
    }
}

/// The same, of a time for which everything else may wait.
pub(crate) fn moment(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_millis(1);
    match duration(text)? {
        time if time <= MOST => Ok(time),
        _ => Err(format!("{text:?} is too long: at most 1ms")),
    }
}

/// `200us`, `20ms`, `1s`: the time that something takes.
pub(crate) fn short_time(text: &str) -> Result<Duration, String> {
    match split(text) {
        (number, "us") => number
            .parse()
            .map(Duration::from_micros)
            .map_err(|_| format!("{text:?} does not begin with a number")),
        // A bare number could mean anything here.
        (number, "") if number != "0" => Err(format!("{text:?} has no unit: use us, ms or s")),
        _ => duration(text),
    }
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
    let first: SocketAddr = front.parse().map_err(|_| {
        format!("{text:?} is no address and port: write 10.0.0.1:80, [fd00::1]:80, or a range of ports as in 10.0.0.1:20000-20100")
    })?;
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

fn split(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
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
        assert!(bytes("1 MB").is_err());
        assert!(bytes("x").is_err());
        assert!(bytes("99999999999GiB").is_err());
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
    fn short_times_have_units() {
        assert_eq!(short_time("200us"), Ok(Duration::from_micros(200)));
        assert_eq!(short_time("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(short_time("0"), Ok(Duration::ZERO));
        assert!(short_time("20").is_err());
        assert!(short_time("us").is_err());
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
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        assert!(duration("1h").is_err());
        assert_eq!(moment("1ms"), Ok(Duration::from_millis(1)));
        assert!(moment("2ms").is_err());
        assert!(duration("-1s").is_err());
    }
}
