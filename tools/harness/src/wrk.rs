//! What wrk says.

use anyhow::{Context, Result, ensure};

/// Requests a second.
///
/// # Errors
/// A request has failed, or the text is not of wrk.
pub fn requests_per_second(said: &str) -> Result<f64> {
    let has_error = said.contains("Socket errors") || said.contains("Non-2xx");
    ensure!(!has_error, "wrk had errors: {said}");
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:"));
    let rate = line.and_then(|text| text.trim().parse().ok());
    rate.with_context(|| format!("wrk did not say how fast it was: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_read_unless_a_request_failed() {
        let said = "  99 requests in 1.00s\nRequests/sec:     98.50\nTransfer/sec:  1MB\n";
        assert_eq!(requests_per_second(said).unwrap(), 98.5);
        assert!(requests_per_second(&format!("{said}Socket errors: read 1\n")).is_err());
        assert!(requests_per_second("").is_err());
    }
}
