//! What is told of what `outlive` tells: a word, and the rest.

use serde_json::Value;

/// Who tells, and what is known of the others.
pub(crate) struct Scene<'a> {
    /// The host of whose `serve` or `standby` it is an event.
    pub(crate) host: &'a str,
    /// A standby takes over.
    pub(crate) takes_over: bool,
    /// The logger was killed and is not back yet.
    pub(crate) awaits_logger: bool,
}

/// The lines for an event of `serve` or `standby`: none if it is neither a step nor trouble.
pub(crate) fn of_serve(event: &Value, scene: &Scene<'_>) -> Vec<(String, String)> {
    let host = scene.host;
    let number = |field: &str| event[field].as_u64().unwrap_or(0);
    let line = |what: &str, text: String| vec![(what.to_owned(), text)];
    match event["event"].as_str().unwrap_or_default() {
        "started" => line(
            "started",
            format!("nginx on {host}, as process {}", number("pid")),
        ),
        "protecting" => line(
            "protecting",
            "connections to nginx will outlive it from now on".into(),
        ),
        "died" if scene.takes_over => Vec::new(),
        "died" => line(
            "detected",
            format!(
                "nothing that the dying nginx says gets out ({})",
                cause(event)
            ),
        ),
        "restarted" => line(
            "restarted",
            format!("nginx on {host}, as process {}", number("pid")),
        ),
        "spliced" => line(
            "spliced",
            format!(
                "{} connections joined to the new nginx",
                number("connections")
            ),
        ),
        "serving" => vec![
            (
                "replayed".into(),
                format!(
                    "{:.1} MB that clients had sent were given to it again",
                    event["replayed_bytes"].as_f64().unwrap_or(0.0) / 1e6
                ),
            ),
            (
                "live".into(),
                format!(
                    "{} connections go on, {} are lost",
                    number("kept"),
                    number("lost")
                ),
            ),
        ],
        "stands_by" => line("standby", format!("{host} waits to take over")),
        "leased" if event["leased"] == true => line(
            "leased",
            format!("{host} speaks by leases from now on, so that another may when they are over"),
        ),
        "granted" if scene.takes_over => line(
            "granted",
            format!("what the other host may say is over: {host} serves now"),
        ),
        "restored" => line(
            "taken over",
            format!(
                "the record of {} connections, and their addresses",
                number("connections")
            ),
        ),
        "logger_in_use" if !scene.takes_over => line(
            "recorded",
            "by the logger: nothing is acknowledged that is not in its files".into(),
        ),
        "logger_lost" => line("waiting", "clients wait for the logger".into()),
        "logger_back" => line("logger", "the logger answers again".into()),
        // We know why, and for how long.
        "trouble" if scene.awaits_logger => {
            let message = event["message"].as_str().unwrap_or_default();
            if message.starts_with("the lease") {
                line("silent", format!("{host}, when its lease is over"))
            } else {
                line("waiting", "uploads, until it answers again".into())
            }
        }
        "listening" | "verified" | "granted" | "logger_in_use" => Vec::new(),
        other => line(
            &other.to_uppercase(),
            event["message"].as_str().unwrap_or_default().to_owned(),
        ),
    }
}

/// The line for an event of the logger, if there is one.
pub(crate) fn of_logger(event: &Value) -> Option<(&'static str, String)> {
    let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
    let connections = event["connections"].as_u64().unwrap_or(0);
    match event["event"].as_str().unwrap_or_default() {
        "restored" if connections > 0 => Some((
            "read",
            format!("records of {connections} connections, from its files"),
        )),
        "attached" if event["kept"] == true => {
            Some(("recorded", "again, and nothing is missing".into()))
        }
        "log_failed" => Some(("LOG FAILED", text("reason"))),
        "trouble" => Some(("TROUBLE", text("message"))),
        _ => None,
    }
}

/// What the server died of: of our SIGKILL, one hopes.
fn cause(event: &Value) -> String {
    let cause = &event["cause"];
    match cause["kind"].as_str() {
        Some("signal") => format!("process {}: signal {}", cause["pid"], cause["signal"]),
        Some("status") => format!("process {}: exit status {}", cause["pid"], cause["status"]),
        _ => "it does not serve".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(event: &Value, takes_over: bool) -> Vec<String> {
        let scene = Scene {
            host: "host-b",
            takes_over,
            awaits_logger: false,
        };
        let lines = of_serve(event, &scene).into_iter();
        lines
            .map(|(what, text)| format!("{what}: {text}"))
            .collect()
    }

    #[test]
    fn a_takeover_is_told_where_it_differs_from_a_restart() {
        let granted = json!({"event": "granted", "epoch": 2});
        assert!(told(&granted, false).is_empty());
        assert!(told(&granted, true)[0].contains("host-b serves now"));
        let died = json!({"event": "died", "cause": {"kind": "signal", "pid": 7, "signal": 9}});
        assert!(told(&died, false)[0].ends_with("(process 7: signal 9)"));
        assert!(told(&died, true).is_empty());
    }

    #[test]
    fn what_nobody_expects_is_told_loudly() {
        let event = json!({"event": "unprotected", "message": "10.0.0.1:7"});
        assert_eq!(told(&event, false), ["UNPROTECTED: 10.0.0.1:7"]);
        let event = json!({"event": "log_failed", "reason": "full"});
        assert_eq!(of_logger(&event), Some(("LOG FAILED", "full".to_owned())));
    }
}
