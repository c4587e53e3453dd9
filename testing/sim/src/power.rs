//! The power of the server's host: it goes, and comes back a while later. Nothing is left then but what
//! a logger on another machine has.

use rand::{Rng, rngs::SmallRng};
use south_model::{Restored, restored_flow};

use crate::{
    MS, SECOND,
    actions::call,
    driver::{Driver, Ground, time},
    link::Remote,
    node::Node,
    record::Logger,
    scenario::LinkSetup,
    trace,
    witness::{Violation, Witness},
};

/// Longest time with power, and without it, ns. A logger gives records to nobody while it has heard of
/// their owner in the last second.
const ON: u64 = SECOND;
const OFF: u64 = 3 * SECOND;
/// How soon a logger is asked again.
const RETRY: u64 = 200 * MS;

/// The power.
#[derive(Debug)]
pub(crate) struct Power {
    /// How often it is still to go.
    left: u32,
    /// When it goes, or comes back; `None`: never.
    pub(crate) turn_at: Option<u64>,
    off: bool,
    life: u8,
}

impl Power {
    pub(crate) fn new(link: Option<&LinkSetup>, rng: &mut SmallRng) -> Self {
        let left = link.map_or(0, |link| link.restarts);
        Self {
            left,
            turn_at: (left > 0).then(|| rng.random_range(0..ON)),
            off: false,
            life: 0,
        }
    }

    pub(crate) const fn is_off(&self) -> bool {
        self.off
    }

    /// Does what is due. The host and its supervisor are other ones afterwards.
    pub(crate) fn turn(
        &mut self,
        link: Option<&LinkSetup>,
        (node, driver): (&mut Node, &mut Driver),
        (logger, witness): (&mut Logger, &mut Witness),
        rng: &mut SmallRng,
        now: u64,
    ) -> Result<(), Violation> {
        if self.turn_at.is_none_or(|at| now < at) {
            return Ok(());
        }
        if !self.off && link.is_some_and(|link| link.waits) && !witness.has_more_to_do() {
            self.turn_at = Some(now + MS);
            return Ok(());
        }
        if !self.off {
            trace::note(now, || "the power goes");
            self.off = true;
            self.turn_at = Some(now + rng.random_range(10 * MS..OFF));
            witness.lost_power();
            let setup = node.setup.clone();
            let north = node.north.take();
            *node = Node::new(setup, link, self.life + 1, rng, now);
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
            self.turn_at = Some(now + RETRY);
            return Ok(());
        };
        trace::note(now, || {
            format!("the power is back: {} records", records.len())
        });
        self.off = false;
        self.life += 1;
        self.left -= 1;
        self.turn_at = (self.left > 0).then(|| now + rng.random_range(0..ON));
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
                flow.log.restored = Restored::Told;
            }
            node.south.restore(recorded.beginning.key, flow);
        }
        let sum = |driver: &Driver| (driver.recoveries, driver.replayed_bytes, driver.deaths);
        let before = sum(driver);
        *driver = Driver::anew(node.setup.clone(), driver.life(), now);
        (driver.recoveries, driver.replayed_bytes, driver.deaths) = before;
        let mut ground = Ground {
            node,
            logger,
            witness,
            rng,
            now,
        };
        for (recorded, _) in &records {
            let beginning = &recorded.beginning;
            call(beginning.key, beginning.flow, &mut ground)?;
        }
        Ok(())
    }
}
