//! Table V: how long a recovery takes when 1 MB is logged.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::experiment::{Layout, Strategy};
use super::stage::{Protection, Stage, finish, send};
use super::statistics::Mean;
use harness::task::{Interrupt, Programs};

const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);
/// serve starts a server of this age again without a pause.
const BACKOFF_RESET_TIME: Duration = Duration::from_millis(1050);

/// Where the logger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoggerPlace {
    /// The paper's name of the place.
    pub(super) name: &'static str,
    layout: Layout,
    protection: Protection,
}

/// The paper's three.
pub(super) const LOGGER_PLACES: [LoggerPlace; 3] = [
    LoggerPlace {
        name: "10-10",
        layout: Layout::Equal,
        protection: Protection::Logger,
    },
    LoggerPlace {
        name: "10-100",
        layout: Layout::FastLog,
        protection: Protection::Logger,
    },
    LoggerPlace {
        name: "local",
        layout: Layout::Equal,
        protection: Protection::Local,
    },
];

/// The recoveries with the logger in a place, in milliseconds.
pub(super) struct Recoveries {
    pub(super) place: LoggerPlace,
    /// From the detection of the death until the connection is spliced onto the new process.
    pub(super) restart: Vec<f64>,
    /// From then until all that was logged is replayed and the connection is live.
    pub(super) replay: Vec<f64>,
}

impl Recoveries {
    pub(super) fn to_json(&self) -> Value {
        let mean = |values: &[f64]| {
            Mean::of(values).map(|mean| json!({ "mean_ms": mean.mean, "within_ms": mean.within }))
        };
        json!({
            "logger": self.place.name,
            "runs": self.restart.len(),
            "restart": mean(&self.restart),
            "replay": mean(&self.replay),
        })
    }
}

pub(super) fn measure(
    place: LoggerPlace,
    runs: usize,
    programs: &Programs,
    interrupt: &Interrupt,
) -> Result<Recoveries> {
    let stage = Stage::build(place.layout, programs.clone(), interrupt.clone())?;
    let measured = recoveries(&stage, place, runs);
    let removed = stage.remove();
    let recoveries = measured?;
    removed?;
    let shown = |values: &[f64]| Mean::of(values).map_or(f64::NAN, |mean| mean.mean);
    println!(
        "  {:<9} restart {:.2} ms, replay {:.2} ms",
        place.name,
        shown(&recoveries.restart),
        shown(&recoveries.replay)
    );
    Ok(recoveries)
}

fn recoveries(stage: &Stage, place: LoggerPlace, runs: usize) -> Result<Recoveries> {
    let logger = match place.protection {
        Protection::Logger => Some(stage.start_logger(false)?),
        _ => None,
    };
    let mut server = stage.start_server(Strategy::Conditional, &place.protection)?;
    let mut recoveries = Recoveries {
        place,
        restart: Vec::new(),
        replay: Vec::new(),
    };
    for number in 1..=runs {
        stage.interrupt.check()?;
        let mut stream = stage.connect(RECOVERY_TIMEOUT)?;
        send(&mut stream)?;
        stage.await_acknowledged(&stream, RECOVERY_TIMEOUT)?;
        thread::sleep(BACKOFF_RESET_TIME);
        let event = server.kill(&stage.interrupt)?;
        // The new process must have got the whole record, byte for byte as many.
        finish(&stream).with_context(|| format!("after recovery {number}"))?;
        let time = |field: &str| {
            let time = event["timings"][field].as_f64();
            time.with_context(|| format!("no {field} in {event}"))
        };
        let spliced = time("first_spliced_ms")?;
        recoveries.restart.push(spliced - time("detected_ms")?);
        recoveries.replay.push(time("live_ms")? - spliced);
    }
    server.stop()?;
    drop(logger);
    Ok(recoveries)
}
