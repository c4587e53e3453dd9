//! The deaths behind an ordinary balancer.

use anyhow::{Context, Result};
use harness::direct_return::DirectReturn;
use harness::pool::PoolHosts;

use super::Act;

/// The server with the most connections dies; a server that is back is not needed.
pub(super) fn act(hosts: &PoolHosts, balancer: &mut DirectReturn, act: Act) -> Result<String> {
    if act == Act::PowerOn {
        return Ok("(nothing comes back)".to_owned());
    }
    let busiest = balancer.busiest().context("all servers are dead")?;
    let host = hosts.host(busiest);
    match act {
        Act::KillServer => host.kill(&host.pids()?)?,
        Act::PowerOff | Act::PowerOn => host.power_off()?,
    }
    balancer.leave_out(busiest)?;
    Ok(format!("{} dies", host.name()))
}
