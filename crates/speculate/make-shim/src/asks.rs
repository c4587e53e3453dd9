// What a runner has in common with the engine, which has the other side of it: included by both kinds of runner, so that
// modules find each other at the root of each.

#[allow(dead_code, unreachable_pub, reason = "the other side is the engine's")]
#[path = "../../make/src/command.rs"]
mod command;
#[allow(dead_code, unreachable_pub, reason = "the other side is the engine's")]
#[path = "../../make/src/environment.rs"]
mod environment;
#[allow(dead_code, unreachable_pub, reason = "the other side is the engine's")]
#[path = "../../make/src/jobserver.rs"]
mod jobserver;
#[allow(dead_code, unreachable_pub, reason = "the other side is the engine's")]
#[path = "../../make/src/link.rs"]
mod link;
#[allow(dead_code, unreachable_pub, reason = "the other side is the engine's")]
#[path = "../../make/src/runner.rs"]
mod runner;
