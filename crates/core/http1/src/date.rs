//! Dates in fields (RFC 9110, 5.6.7).

use core::time::Duration;

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const SECONDS_PER_DAY: u64 = 86_400;

/// Time since the Unix epoch of a date in the preferred form: `Sun, 06 Nov 1994 08:49:37 GMT`. `None` for other forms,
/// and for times before the epoch. The day of the week is not compared.
#[must_use]
pub fn parse(value: &str) -> Option<Duration> {
    let value = value.trim();
    let (_, value) = value.split_once(", ")?;
    let mut words = value.split(' ');
    let day: u64 = number(words.next()?, 2)?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)?;
    let year: u64 = number(words.next()?, 4)?;
    let mut time = words.next()?.split(':');
    let (hour, minute, second) = (
        number(time.next()?, 2)?,
        number(time.next()?, 2)?,
        number(time.next()?, 2)?,
    );
    let is_whole = words.next() == Some("GMT") && words.next().is_none() && time.next().is_none();
    // A leap second is the 61st of its minute.
    if !is_whole || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days_since_epoch(year, u64::try_from(month).ok()? + 1, day)?;
    let seconds = days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second;
    Some(Duration::from_secs(seconds))
}

fn number(text: &str, digits: usize) -> Option<u64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Days of the Gregorian calendar since 1970-01-01. A year begins in March here, so that the leap day is its last day.
fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 {
        year.checked_sub(1)?
    } else {
        year
    };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let days = year * 365 + year / 4 - year / 100 + year / 400 + day_of_year;
    // 1970-01-01 by the same count.
    days.checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read() {
        let seconds = |text| parse(text).map(|time| time.as_secs());
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(seconds("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(
            seconds("Thu, 29 Feb 2024 23:59:60 GMT"),
            Some(1_709_251_200)
        );
        assert_eq!(
            seconds("Sun, 29 Nov 2026 09:05:15 GMT"),
            Some(1_795_943_115)
        );
        for wrong in [
            "",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Wed, 31 Dec 1969 23:59:59 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
