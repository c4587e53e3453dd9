//! The power of the server's host, which fails and returns a while later. Then only a logger on another machine has
//! any state.

use rand::{Rng, rngs::SmallRng};
use south_model::{Restored, restored_flow};

use crate::{
    MS, SECOND,
    actions::probe_client,
    driver::{Context, Driver, time},
    invariants::{InvariantChecker, Violation},
    link::Remote,
    node::Node,
    record::Logger,
    scenario::LinkSetup,
    trace,
};

/// Longest time with power, ns. A logger gives no records away while the owner was heard in the last second.
const LONGEST_ON: u64 = SECOND;
/// Longest time without power, ns.
const LONGEST_OFF: u64 = 3 * SECOND;
/// Time between two requests for the records, ns.
const LOGGER_RETRY_INTERVAL: u64 = 200 * MS;

/// The power supply.
#[derive(Debug)]
pub(crate) struct Power {
    /// Number of failures to come.
    left: u32,
    /// Time of the next failure or return; `None`: never.
    pub(crate) transition_at: Option<u64>,
    off: bool,
    instance: u8,
}

impl Power {
    pub(crate) fn new(link: Option<&LinkSetup>, rng: &mut SmallRng) -> Self {
        let left = link.map_or(0, |link| link.restarts);
        Self {
            left,
            transition_at: (left > 0).then(|| rng.random_range(0..LONGEST_ON)),
            off: false,
            instance: 0,
        }
    }

    pub(crate) const fn is_off(&self) -> bool {
        self.off
    }

    /// Performs the failure or return that is due. Host and supervisor are new afterwards.
    pub(crate) fn advance(
        &mut self,
        link: Option<&LinkSetup>,
        (node, driver): (&mut Node, &mut Driver),
        (logger, checker): (&mut Logger, &mut InvariantChecker),
        rng: &mut SmallRng,
        now: u64,
    ) -> Result<(), Violation> {
        if self.transition_at.is_none_or(|at| now < at) {
            return Ok(());
        }
        if !self.off && link.is_some_and(|link| link.waits) && !checker.has_more_to_do() {
            self.transition_at = Some(now + MS);
            return Ok(());
        }
        if !self.off {
            trace::note(now, || "the power goes");
            self.off = true;
            self.transition_at = Some(now + rng.random_range(10 * MS..LONGEST_OFF));
            checker.lost_power();
            let setup = node.setup.clone();
            let north = node.north.take();
            *node = Node::new(setup, link, self.instance + 1, rng, now);
            node.north = north;
            node.north
                .iter_mut()
                .for_each(|north| north.lose_power(rng));
            return Ok(());
        }
        let remote = logger.remote.as_mut();
        let Some((next, records)) =
            remote.and_then(|remote| remote.inherited(node.south.digest_seed(), time(now)))
        else {
            self.transition_at = Some(now + LOGGER_RETRY_INTERVAL);
            return Ok(());
        };
        trace::note(now, || {
            format!("the power is back: {} records", records.len())
        });
        self.off = false;
        self.instance += 1;
        self.left -= 1;
        self.transition_at = (self.left > 0).then(|| now + rng.random_range(0..LONGEST_ON));
        let known = logger.remote.as_ref().and_then(Remote::digests);
        let hands_on = link.is_none_or(|link| link.hands_key_on);
        if let Some(seed) = known.filter(|_| hands_on) {
            node.south.take_digest_key(seed);
        }
        node.south.heartbeat(now);
        node.south.gate(now);
        node.south.number_from(next);
        for (recorded, summary) in &records {
            let mut flow = restored_flow(recorded, summary, node.setup.verify_head);
            flow.log.stateful = node.north.is_some();
            flow.log.doubt = flow.log.doubt.filter(|_| node.setup.doubts);
            if node.setup.trusts_silence {
                flow.log.restored = Restored::GapKnown;
            }
            node.south.restore(recorded.beginning.key, flow);
        }
        let sum = |driver: &Driver| (driver.recoveries, driver.replayed_bytes, driver.deaths);
        let before = sum(driver);
        *driver = Driver::anew(node.setup.clone(), driver.starts(), now);
        (driver.recoveries, driver.replayed_bytes, driver.deaths) = before;
        let mut context = Context {
            node,
            logger,
            checker,
            rng,
            now,
        };
        for (recorded, _) in &records {
            let beginning = &recorded.beginning;
            probe_client(beginning.key, beginning.flow, &mut context)?;
        }
        Ok(())
    }
}
