//! What `outlive check` asks a store.

use std::time::Instant;

use crate::{
    Completion, Failure, Operation, Outcome, Probe, Report, Settings, Store, StoreClient, StoreUrl,
};

/// Questions: the first finds the caches cold.
const QUESTION_COUNT: u64 = 5;

/// Asks a store about itself; waits for the answer, at most two time limits and the time limit of connecting. The round
/// trip is the shortest of five.
///
/// # Errors
/// The failure of the store.
pub fn probe(url: &StoreUrl, settings: Settings) -> Result<Probe, Failure> {
    let settings = Settings {
        time_limit: settings.time_limit + settings.connect_limit,
        ..settings
    };
    let until = Instant::now() + settings.time_limit + settings.connect_limit;
    let mut store = StoreClient::open(url, settings)
        .map_err(|error| Failure::Unreachable(error.to_string()))?;
    let mut reports = Vec::new();
    let mut shortest: Option<Probe> = None;
    for _ in 0..QUESTION_COUNT {
        store.submit(Operation::Probe)?;
        let probe = loop {
            store.poll(&mut reports);
            let mut results = reports.drain(..).filter_map(|report| match report {
                Report::Completed(Completion { result, .. }) => Some(result),
                Report::Lost(_) | Report::Connected { .. } => None,
            });
            match results.next() {
                Some(Ok(Outcome::Probed(probe))) => break probe,
                Some(Ok(_)) => return Err(Failure::Protocol("a probe without an answer")),
                Some(Err(failure)) => return Err(failure),
                None => store.wait(until)?,
            }
        };
        let is_shorter = shortest
            .as_ref()
            .is_none_or(|before| probe.round_trip < before.round_trip);
        if is_shorter {
            shortest = Some(probe);
        }
    }
    shortest.ok_or(Failure::TimedOut)
}
