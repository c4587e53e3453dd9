//! The two formats of the numbers, and the choice for a peer.

use std::fmt::Write as _;

/// A format of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// `application/openmetrics-text`: for a peer that asks for the format, as Prometheus does.
    OpenMetrics,
    /// The older format of Prometheus, which all readers support.
    Plain,
}

impl Format {
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// By an `Accept` field (RFC 9110, 12.5.1).
    pub(crate) fn accepted(accept: &str) -> Self {
        let named = |types: &[&str]| {
            let ranges = accept.split(',').map(range);
            let named =
                ranges.filter(|(name, _)| types.iter().any(|one| one.eq_ignore_ascii_case(name)));
            named.map(|(_, quality)| quality).fold(0.0, f32::max)
        };
        let open = named(&["application/openmetrics-text"]);
        if open > 0.0 && open >= named(&["text/plain", "text/*"]) {
            Self::OpenMetrics
        } else {
            Self::Plain
        }
    }
}

/// A media range and its quality (RFC 9110 12.5.1).
fn range(text: &str) -> (&str, f32) {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let quality = parts.find_map(|part| part.strip_prefix("q="));
    (
        name,
        quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0)),
    )
}

/// OpenMetrics text in the older format. There a counter has its whole name, an info is a gauge, and there are neither
/// units nor an end mark.
pub(crate) fn plain(open: &str) -> String {
    let mut out = String::with_capacity(open.len());
    let mut help = None;
    for line in open.lines() {
        if let Some(line) = line.strip_prefix("# HELP ") {
            help = line.split_once(' ').map(|(_, help)| help);
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|of| of.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                kind => ("", kind),
            };
            // A String takes everything.
            let _ = write!(
                out,
                "# HELP {name}{suffix} {}\n# TYPE {name}{suffix} {kind}\n",
                help.take().unwrap_or_default()
            );
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_header_selects_format() {
        use Format::{OpenMetrics, Plain};
        for (accept, format) in [
            ("", Plain),
            ("*/*", Plain),
            ("text/plain;version=0.0.4", Plain),
            ("application/openmetrics-text", OpenMetrics),
            (
                "Application/OpenMetrics-Text; version=1.0.0; charset=utf-8",
                OpenMetrics,
            ),
            // Prometheus 2.
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                OpenMetrics,
            ),
            (
                "text/plain;q=0.9, application/openmetrics-text;q=0.1",
                Plain,
            ),
            ("application/openmetrics-text;q=0", Plain),
            ("application/openmetrics-text;q=much, text/html", Plain),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept:?}");
        }
    }
}
