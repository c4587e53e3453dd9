//! State of the servers, from the events of `outlive` and of the logger.

use std::ops::{Index, IndexMut};

use lab::Pid;
use serde_json::Value;

use crate::server::Server;

/// State of a server.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    /// Process number of the server's main process.
    pub(crate) main: Option<Pid>,
    /// The server serves.
    pub(crate) live: bool,
    /// Whether the service is attached to the logger, and whether with earlier records.
    pub(crate) recorded: bool,
    pub(crate) found: bool,
    /// The standby waits, and the active host knows of the standby.
    pub(crate) stands_by: bool,
    pub(crate) leased: bool,
}

impl Condition {
    /// Applies an event of `serve`.
    pub(crate) fn follow(&mut self, event: &Value) {
        match event["event"].as_str().unwrap_or_default() {
            "started" | "restarted" => self.main = event["pid"].as_i64().and_then(to_pid),
            "protecting" | "serving" => self.live = true,
            "lease_required" => self.leased = event["required"] == true,
            _ => {}
        }
    }

    /// Notes the death of the server, alone or with the host.
    pub(crate) fn dies(&mut self) {
        self.live = false;
        self.main = None;
    }

    /// Whether the server serves, its record is complete, and a standby would take over. Record and standby need a
    /// logger.
    pub(crate) fn is_ready(&self, with_logger: bool) -> bool {
        self.is_live(with_logger) && (self.stands_by && self.leased || !with_logger)
    }

    /// The same without the standby.
    pub(crate) fn is_live(&self, with_logger: bool) -> bool {
        self.live && (self.recorded || !with_logger)
    }
}

fn to_pid(number: i64) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

/// State of all servers.
#[derive(Debug, Default)]
pub(crate) struct Conditions([Condition; Server::ALL.len()]);

impl Conditions {
    /// Whether all servers meet the condition.
    pub(crate) fn all(&self, so: impl Fn(&Condition) -> bool) -> bool {
        self.0.iter().all(so)
    }

    pub(crate) fn each(&mut self) -> impl Iterator<Item = &mut Condition> {
        self.0.iter_mut()
    }
}

impl Index<Server> for Conditions {
    type Output = Condition;

    fn index(&self, server: Server) -> &Condition {
        &self.0[server as usize]
    }
}

impl IndexMut<Server> for Conditions {
    fn index_mut(&mut self, server: Server) -> &mut Condition {
        &mut self.0[server as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn server_is_ready_after_all_events() {
        let mut conditions = Conditions::default();
        let all = |conditions: &Conditions, with| conditions.all(|one| one.is_ready(with));
        for server in Server::ALL {
            assert!(!all(&conditions, false));
            conditions[server].follow(&json!({"event": "started", "pid": 7}));
            conditions[server].follow(&json!({"event": "protecting"}));
        }
        assert!(all(&conditions, false) && !all(&conditions, true));
        for condition in conditions.each() {
            (condition.recorded, condition.stands_by) = (true, true);
            condition.follow(&json!({"event": "lease_required", "required": true}));
        }
        assert!(all(&conditions, true));
        assert_eq!(conditions[Server::Redis].main, Pid::from_raw(7));
        conditions[Server::Redis].dies();
        assert!(!all(&conditions, true) && conditions[Server::Redis].main.is_none());
        conditions[Server::Redis].follow(&json!({"event": "serving"}));
        assert!(all(&conditions, true));
    }
}
