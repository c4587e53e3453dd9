//! Where the records of the connections begin in the log.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use wire::FlowId;

/// Where the records of the connections begin in the log.
#[derive(Debug, Default)]
pub(super) struct Bases {
    of: HashMap<(u64, FlowId), u64>,
    pub(super) by_segment: BTreeMap<u64, BTreeSet<(u64, FlowId)>>,
}

impl Bases {
    pub(super) fn put(&mut self, instance: u64, flow: FlowId, segment: u64) {
        self.remove(instance, flow);
        self.of.insert((instance, flow), segment);
        let flows = self.by_segment.entry(segment).or_default();
        flows.insert((instance, flow));
    }

    pub(super) fn remove(&mut self, instance: u64, flow: FlowId) {
        let Some(segment) = self.of.remove(&(instance, flow)) else {
            return;
        };
        if let Some(flows) = self.by_segment.get_mut(&segment) {
            flows.remove(&(instance, flow));
            if flows.is_empty() {
                self.by_segment.remove(&segment);
            }
        }
    }

    pub(super) fn remove_instance(&mut self, instance: u64) {
        let flows = self.of.keys().filter(|(i, _)| *i == instance);
        for (instance, flow) in flows.copied().collect::<Vec<_>>() {
            self.remove(instance, flow);
        }
    }

    /// The connections of one instance are those of another from now on.
    pub(super) fn rename(&mut self, from: u64, to: u64) {
        let flows = self
            .of
            .iter()
            .filter(|((instance, _), _)| *instance == from);
        let flows: Vec<_> = flows
            .map(|((_, flow), segment)| (*flow, *segment))
            .collect();
        for (flow, segment) in flows {
            self.remove(from, flow);
            self.put(to, flow, segment);
        }
    }

    pub(super) fn has(&self, instance: u64, flow: FlowId) -> bool {
        self.of.contains_key(&(instance, flow))
    }
}
