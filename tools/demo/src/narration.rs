//! Events of `outlive` as lines of text: a word, and the rest.

use serde_json::Value;

use crate::server::Server;

/// The source of an event, and the state of the other parts.
pub(crate) struct Scene<'a> {
    pub(crate) server: Server,
    /// The host of the `serve` or `standby`.
    pub(crate) host: &'a str,
    /// A standby takes over.
    pub(crate) takes_over: bool,
    /// The logger was killed and is not back yet.
    pub(crate) awaits_logger: bool,
}

/// The lines for an event of `serve` or `standby`: none for an event without a step or a failure.
pub(crate) fn of_serve(event: &Value, scene: &Scene<'_>) -> Vec<(String, String)> {
    let (server, host) = (scene.server, scene.host);
    let number = |field: &str| event[field].as_u64().unwrap_or(0);
    let line = |what: &str, text: String| vec![(what.to_owned(), text)];
    match event["event"].as_str().unwrap_or_default() {
        "started" => line(
            "started",
            format!("{server} on {host}, as process {}", number("pid")),
        ),
        "protecting" => line(
            "protecting",
            format!("connections to {server} will outlive it from now on"),
        ),
        "died" if scene.takes_over => Vec::new(),
        "died" => line(
            "detected",
            format!(
                "nothing that the dying {server} says gets out ({})",
                cause(event)
            ),
        ),
        "restarted" => line(
            "restarted",
            format!("{server} on {host}, as process {}", number("pid")),
        ),
        "spliced" => line(
            "spliced",
            format!(
                "{} connections joined to the new {server}",
                number("connections")
            ),
        ),
        "serving" => vec![
            ("replayed".into(), replayed(event, server)),
            (
                "live".into(),
                format!(
                    "{server}: {} connections go on, {} are reset",
                    number("recovered"),
                    number("reset")
                ),
            ),
        ],
        "standby_started" => line("standby", format!("{host} waits to take over {server}")),
        "lease_required" if event["required"] == true => line(
            "leased",
            format!("{server} on {host} speaks by leases, so that another may when they are over"),
        ),
        // The standby returns to the logger, too.
        "lease_required" if scene.awaits_logger => Vec::new(),
        "granted" if scene.takes_over => line(
            "granted",
            format!("what {server} on the other host may say is over: {host} serves now"),
        ),
        "restored" => line(
            "taken over",
            format!(
                "the record of {} connections to {server}, and their addresses",
                number("connections")
            ),
        ),
        "logger_in_use" if !scene.takes_over => line(
            "recorded",
            format!("what {server} is sent, by the logger, before it is acknowledged"),
        ),
        "logger_lost" => line("waiting", format!("clients of {server}, for the logger")),
        "logger_back" => line("logger", format!("it answers {server} again")),
        // We know why, and for how long.
        "warning" if scene.awaits_logger => {
            if event["code"] == "lease_not_renewed" {
                line(
                    "silent",
                    format!("{server} on {host}, when its lease is over"),
                )
            } else {
                line(
                    "waiting",
                    format!("who sends to {server}, until the logger answers again"),
                )
            }
        }
        "listening" | "verified" | "granted" | "logger_in_use" => Vec::new(),
        other => line(
            &other.to_uppercase(),
            format!(
                "{server}: {}",
                event["message"].as_str().unwrap_or(&event.to_string())
            ),
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
            let of = text("service");
            Some(("recorded", format!("{of} again, and nothing is missing")))
        }
        "log_failed" => Some(("LOG FAILED", text("reason"))),
        "warning" => Some(("WARNING", text("reason"))),
        _ => None,
    }
}

/// The replayed input of a server that serves again.
fn replayed(event: &Value, server: Server) -> String {
    if server.has_state() {
        return format!("{server}'s own record was given to it again");
    }
    format!(
        "{:.1} MB that clients of {server} had sent were given to it again",
        event["replayed_bytes"].as_f64().unwrap_or(0.0) / 1e6
    )
}

/// The cause of the server's death, usually our SIGKILL.
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

    fn narrated(event: &Value, takes_over: bool) -> Vec<String> {
        let scene = Scene {
            server: Server::Redis,
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
    fn takeover_is_narrated_unlike_restart() {
        let granted = json!({"event": "granted", "epoch": 2});
        assert!(narrated(&granted, false).is_empty());
        assert!(narrated(&granted, true)[0].contains("host-b serves now"));
        let died = json!({"event": "died", "cause": {"kind": "signal", "pid": 7, "signal": 9}});
        assert!(narrated(&died, false)[0].ends_with("(process 7: signal 9)"));
        assert!(narrated(&died, true).is_empty());
    }

    #[test]
    fn unexpected_event_is_narrated_in_capitals() {
        let event = json!({"event": "unprotected", "message": "10.0.0.1:7"});
        assert_eq!(narrated(&event, false), ["UNPROTECTED: redis: 10.0.0.1:7"]);
        let event = json!({"event": "log_failed", "reason": "full"});
        assert_eq!(of_logger(&event), Some(("LOG FAILED", "full".to_owned())));
    }
}
