//! The receiver's file: what a crash leaves of it.

use std::{collections::VecDeque, ops::Range};

use blast::{BlastRanges, Extent};
use rand::{Rng, rngs::SmallRng};

use super::{
    super::{Broken, source_byte},
    scenario::ConnectionScenario,
};
use crate::failure::Seeded as _;

pub(super) struct ReceivedFile {
    bytes: Vec<u8>,
    /// Bytes that were there at the beginning of the attempt, or were written since.
    is_written: Vec<bool>,
    /// Blasts that are whole and that the disk has not written.
    volatile: VecDeque<u32>,
    durable: BlastRanges,
}

impl ReceivedFile {
    pub(super) fn new(scenario: &ConnectionScenario) -> Self {
        let len = usize::try_from(scenario.size).unwrap_or(0);
        Self {
            bytes: vec![0; len],
            is_written: vec![false; len],
            volatile: VecDeque::new(),
            durable: BlastRanges::new(),
        }
    }

    /// An attempt begins: the blasts of which the sender finds the hashes right.
    pub(super) fn begin(&mut self, scenario: &ConnectionScenario) -> BlastRanges {
        let blasts = scenario.layout.blasts(scenario.size).unwrap_or(0);
        let mut present = BlastRanges::new();
        self.is_written.fill(false);
        for blast in 0..blasts {
            let range = range_of(scenario, blast);
            if self.wrong_byte(scenario, range.clone()).is_none() {
                present.insert(blast, blast + 1);
                self.is_written[range].fill(true);
            }
        }
        present
    }

    /// Writes a payload, once.
    pub(super) fn write(&mut self, payload: Extent, bytes: &[u8]) -> Result<(), Broken> {
        let start = usize::try_from(payload.position).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(bytes.len());
        let (Some(place), Some(written)) = (
            self.bytes.get_mut(range.clone()),
            self.is_written.get_mut(range),
        ) else {
            return Err(Broken(format!("{payload:?} lies behind the end")));
        };
        if written.contains(&true) {
            return Err(Broken(format!("{payload:?} is written a second time")));
        }
        written.fill(true);
        place.copy_from_slice(bytes);
        Ok(())
    }

    /// A blast counts as whole.
    pub(super) fn add(&mut self, scenario: &ConnectionScenario, blast: u32) -> Result<(), Broken> {
        let position = scenario.layout.blast_position(blast);
        let end = position + scenario.layout.blast_len(blast, scenario.size);
        self.check(scenario, position..end, "whole")?;
        self.volatile.push_back(blast);
        Ok(())
    }

    /// The disk writes a blast.
    pub(super) fn flush_one(&mut self) {
        if let Some(blast) = self.volatile.pop_front() {
            self.durable.insert(blast, blast + 1);
        }
    }

    /// A blast that the disk has not written has any content, as a whole or in part.
    pub(super) fn lose_power(&mut self, scenario: &ConnectionScenario, rng: &mut SmallRng) {
        self.volatile.clear();
        let blasts = scenario.layout.blasts(scenario.size).unwrap_or(0);
        for blast in (0..blasts).filter(|blast| !self.durable.contains(*blast)) {
            let range = range_of(scenario, blast);
            if rng.random() {
                let from = rng.random_range(range.clone());
                self.bytes[from..range.end].fill(rng.random());
            }
        }
    }

    /// These bytes are those of the source.
    pub(super) fn check(
        &self,
        scenario: &ConnectionScenario,
        positions: Range<u64>,
        when: &str,
    ) -> Result<(), Broken> {
        let at = |position: u64| usize::try_from(position).unwrap_or(usize::MAX);
        let range = at(positions.start)..at(positions.end);
        match self.wrong_byte(scenario, range) {
            Some(at) => Err(Broken(format!("byte {at}, {when}, is not the source's"))),
            None => Ok(()),
        }
    }

    fn wrong_byte(&self, scenario: &ConnectionScenario, range: Range<usize>) -> Option<usize> {
        let is_wrong = |at: &usize| {
            let position = u64::try_from(*at).unwrap_or(u64::MAX);
            self.bytes.get(*at) != Some(&source_byte(scenario.seed(), position))
        };
        range.into_iter().find(is_wrong)
    }
}

fn range_of(scenario: &ConnectionScenario, blast: u32) -> Range<usize> {
    let position = scenario.layout.blast_position(blast);
    let end = position + scenario.layout.blast_len(blast, scenario.size);
    let at = |position: u64| usize::try_from(position).unwrap_or(usize::MAX);
    at(position)..at(end)
}
