//! The paper's experiments, and the measurement of a row.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use lab::{Captured, TcpSegment};

use super::stage::{PORT, Protection, Stage, UPLOAD_BYTES, finish, send};
use super::statistics::{Line, Mean, number};
use super::upload::Upload;
use harness::task::{Interrupt, Programs};

/// An upload that takes longer has stalled. The slowest of the paper took 6 s.
const STALL_LIMIT: Duration = Duration::from_secs(20);
/// An upload that takes longer has a reason for that.
const SLOW_UPLOAD: Duration = Duration::from_millis(1500);
/// A later response to a SYN answers a retransmitted SYN.
const LATE_ANSWER_SECONDS: f64 = 0.5;
/// Number of stalls after which a strategy is not tried again.
const STALL_COUNT: usize = 3;

/// How client, server and logger are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Layout {
    /// Client and server on one 10 Mbit/s Ethernet, server and logger on another
    #[value(name = "10-10")]
    Equal,
    /// Client, server and logger on one 10 Mbit/s Ethernet
    #[value(name = "10-shared")]
    Shared,
    /// Client and server on a 10 Mbit/s Ethernet, server and logger on a 100 Mbit/s Ethernet
    #[value(name = "10-100")]
    FastLog,
}

impl Layout {
    pub(super) const ALL: [Self; 3] = [Self::Equal, Self::Shared, Self::FastLog];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Equal => "10-10",
            Self::Shared => "10 Shared",
            Self::FastLog => "10-100",
        }
    }

    /// The Ethernets, by subnet, with their bits per second.
    pub(super) fn rates(self) -> &'static [(u8, u64)] {
        match self {
            Self::Equal => &[(0, 10_000_000), (1, 10_000_000)],
            Self::Shared => &[(0, 10_000_000)],
            Self::FastLog => &[(0, 10_000_000), (1, 100_000_000)],
        }
    }

    /// The subnet of the logger.
    pub(super) fn log_subnet(self) -> u8 {
        u8::from(self != Self::Shared)
    }
}

/// A row of Tables I to III.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Strategy {
    Clean,
    Basic,
    Lazy,
    /// Lazy, with a receive buffer of 64 KB at the server
    Lazy64k,
    Eager,
    Conditional,
}

impl Strategy {
    pub(super) const ALL: [Self; 6] = [
        Self::Clean,
        Self::Basic,
        Self::Lazy,
        Self::Lazy64k,
        Self::Eager,
        Self::Conditional,
    ];

    /// `outlive serve --ack`.
    pub(super) fn ack(self) -> Option<&'static str> {
        match self {
            Self::Clean => None,
            Self::Basic => Some("basic"),
            Self::Lazy | Self::Lazy64k => Some("lazy"),
            Self::Eager => Some("eager"),
            Self::Conditional => Some("conditional"),
        }
    }

    /// The server's SO_RCVBUF, in bytes.
    pub(super) fn receive_buffer(self) -> Option<usize> {
        (self == Self::Lazy64k).then_some(65_536)
    }
}

/// The runs of a row.
pub(super) struct Row {
    pub(super) layout: Layout,
    pub(super) strategy: Strategy,
    /// Whether the logger acknowledged each frame by itself.
    pub(super) each_frame: bool,
    /// The uploads that ended well.
    pub(super) runs: Vec<Upload>,
    /// How many did not.
    pub(super) failed: usize,
    /// The error of the first failed run.
    pub(super) why: Option<String>,
}

impl Row {
    /// A line through the points of all runs, as in the paper: bytes per second.
    pub(super) fn line(&self) -> Option<Line> {
        let points = self.runs.iter().flat_map(|run| &run.acknowledged);
        Line::through(&points.copied().collect::<Vec<_>>())
    }

    /// The slopes of each run's own line: bytes per second.
    pub(super) fn slopes(&self) -> Option<Mean> {
        let lines = self.runs.iter().map(|run| Line::through(&run.acknowledged));
        Mean::of(&lines.flatten().map(|line| line.slope).collect::<Vec<_>>())
    }

    /// The runs' mean latencies, in seconds.
    pub(super) fn latency(&self) -> Option<Mean> {
        let means = self.runs.iter().filter_map(|run| Mean::of(&run.latencies));
        Mean::of(&means.map(|mean| mean.mean).collect::<Vec<_>>())
    }

    /// The standard deviation of all packets' latencies, in seconds.
    pub(super) fn latency_deviation(&self) -> Option<f64> {
        let all = self.runs.iter().flat_map(|run| &run.latencies).copied();
        Some(Mean::of(&all.collect::<Vec<_>>())?.deviation)
    }

    /// Outstream packets of all runs together, without the packets that open the connections.
    pub(super) fn acks(&self) -> usize {
        self.ack_counts().sum()
    }

    /// The same, of a run.
    pub(super) fn acks_of_runs(&self) -> Option<Mean> {
        Mean::of(&self.ack_counts().map(number).collect::<Vec<_>>())
    }

    fn ack_counts(&self) -> impl Iterator<Item = usize> {
        let counts = self.runs.iter().map(|run| run.acknowledged.len());
        counts.map(|count| count.saturating_sub(1))
    }

    /// Instream packets that were sent again, a run.
    pub(super) fn again(&self) -> f64 {
        let again: usize = self.runs.iter().map(|run| run.again).sum();
        number(again) / number(self.runs.len().max(1))
    }

    /// Runs with a late response to the SYN: the first response was lost, and TCP tries again after a second. The
    /// paper's measure includes this second, because the measure counts from the SYN, but the second is no throughput.
    pub(super) fn opened_late(&self) -> usize {
        let first = |run: &&Upload| {
            run.acknowledged
                .first()
                .is_some_and(|(at, _)| *at > LATE_ANSWER_SECONDS)
        };
        self.runs.iter().filter(first).count()
    }

    /// The runs in the order of duration.
    pub(super) fn by_speed(&self) -> Vec<&Upload> {
        let mut runs: Vec<_> = self.runs.iter().collect();
        let end = |run: &Upload| run.acknowledged.last().map_or(0.0, |(at, _)| *at);
        runs.sort_by(|a, b| end(a).total_cmp(&end(b)));
        runs
    }
}

/// The measurements to do.
pub(super) struct Plan {
    pub(super) strategies: Vec<Strategy>,
    pub(super) each_frame: Vec<bool>,
    pub(super) runs: usize,
}

/// Measures the rows of a layout.
pub(super) fn measure(
    layout: Layout,
    plan: &Plan,
    programs: &Programs,
    interrupt: &Interrupt,
) -> Result<Vec<Row>> {
    let stage = Stage::build(layout, programs.clone(), interrupt.clone())?;
    let measured = rows(&stage, layout, plan);
    let removed = stage.remove();
    let rows = measured?;
    removed?;
    Ok(rows)
}

fn rows(stage: &Stage, layout: Layout, plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &each_frame in &plan.each_frame {
        for &strategy in &plan.strategies {
            // The clean row has no logger.
            if strategy == Strategy::Clean && each_frame && plan.each_frame.len() > 1 {
                continue;
            }
            let began = Instant::now();
            let row = row(stage, layout, strategy, each_frame, plan.runs)
                .with_context(|| format!("{strategy:?} over {}", layout.name()))?;
            println!(
                "  {:<9} {:<11} {:<10} {:>8} KB/s  {:>5.1} s{}",
                layout.name(),
                format!("{strategy:?}"),
                if each_frame { "each frame" } else { "batched" },
                row.line()
                    .map_or("-".to_owned(), |line| format!("{:.1}", line.slope / 1024.0)),
                began.elapsed().as_secs_f64(),
                row.why.as_ref().map_or(String::new(), |why| format!(
                    "  {} of {} failed: {why}",
                    row.failed,
                    row.failed + row.runs.len()
                )),
            );
            rows.push(row);
        }
    }
    Ok(rows)
}

fn row(
    stage: &Stage,
    layout: Layout,
    strategy: Strategy,
    each_frame: bool,
    runs: usize,
) -> Result<Row> {
    let (logger, protection) = match strategy {
        Strategy::Clean => (None, Protection::None),
        _ => (Some(stage.start_logger(each_frame)?), Protection::Logger),
    };
    let server = stage.start_server(strategy, &protection)?;
    let mut row = Row {
        layout,
        strategy,
        each_frame,
        runs: Vec::new(),
        failed: 0,
        why: None,
    };
    // An upload that is not measured, so that every run finds known neighbours and paths. The outcome is reported all
    // the same.
    let began = Instant::now();
    let first = transfer(stage);
    let took = began.elapsed();
    if let Err(error) = first {
        row.failed += 1;
        row.why = Some(format!("the first, which is not measured: {error:#}"));
    } else if took > SLOW_UPLOAD {
        println!("  the first upload, which is not measured, took {took:.1?}");
    }
    for _ in 0..runs {
        stage.interrupt.check()?;
        match upload(stage)? {
            Ok(upload) => row.runs.push(upload),
            Err(error) => {
                row.failed += 1;
                row.why.get_or_insert(format!("{error:#}"));
                if row.failed == STALL_COUNT {
                    break;
                }
            }
        }
    }
    server.stop()?;
    drop(logger);
    Ok(row)
}

/// An upload with a capture. The inner error is the upload's, the outer error is the experiment's.
fn upload(stage: &Stage) -> Result<Result<Upload>> {
    let capture = stage.client.capture(&format!("tcp port {PORT}"))?;
    let sent = transfer(stage);
    let captured = capture.finish()?;
    Ok(sent.and_then(|()| read(&captured)))
}

fn transfer(stage: &Stage) -> Result<()> {
    let began = Instant::now();
    let mut stream = stage.connect(STALL_LIMIT)?;
    send(&mut stream)?;
    finish(&stream)?;
    // The answer may come before the last acknowledgement.
    stage.await_acknowledged(&stream, STALL_LIMIT)?;
    ensure!(
        began.elapsed() < STALL_LIMIT,
        "it took {:.1?}",
        began.elapsed()
    );
    Ok(())
}

fn read(captured: &Captured) -> Result<Upload> {
    ensure!(captured.missed == Some(0), "the capture is not whole");
    let packets = captured.packets.iter();
    let segments: Vec<_> = packets
        .filter_map(|packet| Some((packet.time, TcpSegment::parse(&packet.frame)?)))
        .collect();
    let upload = Upload::of(&segments, PORT).context("no connection in the capture")?;
    ensure!(
        upload.is_whole(UPLOAD_BYTES),
        "only {} bytes were sent",
        upload.bytes
    );
    Ok(upload)
}
