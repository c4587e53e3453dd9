//! Numbers with units, as people write them.

use std::time::Duration;

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
    fn durations_have_units() {
        assert_eq!(duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        assert!(duration("1h").is_err());
        assert!(duration("-1s").is_err());
    }
}
