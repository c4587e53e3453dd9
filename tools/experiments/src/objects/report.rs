//! The figures, for people and for scripts.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use harness::machine::{Machine, commit};
use harness::quantile::quantile;
use serde_json::{Value, json};

use super::Fetch;
use super::published::{self, Span};
use super::stage::{Mode, SIZES, Server};

/// All that was measured.
#[derive(Default)]
pub(super) struct Report {
    rates: Vec<Rate>,
    fetches: Vec<(Server, Mode, Fetch)>,
    pub(super) took: Duration,
}

struct Rate {
    server: Server,
    mode: Mode,
    size: usize,
    per_second: f64,
}

impl Report {
    pub(super) fn add_rate(&mut self, server: Server, mode: Mode, size: usize, per_second: f64) {
        self.rates.push(Rate {
            server,
            mode,
            size,
            per_second,
        });
    }

    pub(super) fn add_fetches(&mut self, server: Server, mode: Mode, fetches: Vec<Fetch>) {
        let fetches = fetches.into_iter().map(|fetch| (server, mode, fetch));
        self.fetches.extend(fetches);
    }

    /// The tables, as Markdown.
    pub(super) fn tables(&self) -> String {
        let tables = Server::ALL.map(|server| self.throughput(server) + &self.steps(server));
        tables.concat()
    }

    /// Figure 4 or 5. Writing to a string cannot fail, here and below.
    fn throughput(&self, server: Server) -> String {
        let mut text = format!(
            "## Requests a second: {}\n\n| bytes | | median (least–most) | of plain | paper | of plain |\n\
             |---|---|---|---|---|---|\n",
            server.name()
        );
        for size in SIZES {
            let plain = self.sorted_rates(server, Mode::Plain, size);
            let of_paper = |mode| {
                let is_papers = server == Server::Lighttpd;
                published::requests_per_second(mode, size).filter(|_| is_papers)
            };
            for mode in Mode::ALL {
                let rates = self.sorted_rates(server, mode, size);
                let ratio = quantile(&rates, 0.5) / quantile(&plain, 0.5);
                let paper = of_paper(mode).zip(of_paper(Mode::Plain));
                let paper = paper.map_or("- | -".to_owned(), |(rate, plain)| {
                    format!("{rate} | {:.3}", f64::from(rate) / f64::from(plain))
                });
                let _ = writeln!(
                    text,
                    "| {size} | {} | {:.0} ({:.0}–{:.0}) | {ratio:.3} | {paper} |",
                    mode.name(),
                    quantile(&rates, 0.5),
                    quantile(&rates, 0.0),
                    quantile(&rates, 1.0),
                );
            }
        }
        text + "\n"
    }

    /// Table 2.
    fn steps(&self, server: Server) -> String {
        let mut text = format!(
            "## Steps of a fetch of one byte, µs, median (99th percentile): {}\n\n\
             | step | | ours | more than plain | paper | more than plain |\n|---|---|---|---|---|---|\n",
            server.name()
        );
        for step in Span::ALL {
            let plain = quantile(&self.sorted_steps(server, Mode::Plain, step), 0.5);
            let of_paper = |mode| {
                let is_papers = server == Server::Lighttpd;
                published::microseconds(mode, step).filter(|_| is_papers)
            };
            for mode in Mode::ALL {
                let times = self.sorted_steps(server, mode, step);
                let median = quantile(&times, 0.5);
                let paper = of_paper(mode).zip(of_paper(Mode::Plain));
                let paper = paper.map_or("- | -".to_owned(), |([median, p99], [plain, _])| {
                    let more = i64::from(median) - i64::from(plain);
                    format!("{median} ({p99}) | {more:+}")
                });
                let _ = writeln!(
                    text,
                    "| {} | {} | {median:.0} ({:.0}) | {:+.0} | {paper} |",
                    step.name(),
                    mode.name(),
                    quantile(&times, 0.99),
                    median - plain,
                );
            }
        }
        text + "\n"
    }

    fn sorted_rates(&self, server: Server, mode: Mode, size: usize) -> Vec<f64> {
        let wanted = |rate: &&Rate| (rate.server, rate.mode, rate.size) == (server, mode, size);
        sorted(self.rates.iter().filter(wanted).map(|rate| rate.per_second))
    }

    fn sorted_steps(&self, server: Server, mode: Mode, step: Span) -> Vec<f64> {
        let of = |fetch: &Fetch| match step {
            Span::Handshake => fetch.handshake,
            Span::Response => fetch.response,
            Span::Total => fetch.total,
        };
        let wanted = { self.fetches.iter() }.filter(|(at, how, _)| (*at, *how) == (server, mode));
        sorted(wanted.map(|(_, _, fetch)| of(fetch).as_secs_f64() * 1e6))
    }

    /// Writes `PAPER-OBJECTS.md` and `paper-objects.json`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let machine = Machine::this();
        let head = format!(
            "# The experiments of the TRODS paper, repeated\n\n\
             `make paper ARGS=--objects` writes this file. Commit {}; {} processors ({}), Linux {}; {:.0} s. All hosts are network \
             namespaces of this machine; the paper's have eight cores each, and 1 Gbit/s between them. As in the paper, 25 \
             clients fetch an object each on a connection of its own, and the figures are the median, least and most of \
             runs in turns. *deferred* is the paper's key-value store: no byte of a response leaves before its record is stored \
             (here in Redis, there in memcached). The steps are measured by the \
             client's process; in the paper, in a capture.\n\n",
            commit(),
            machine.cores,
            machine.cpu,
            machine.kernel,
            self.took.as_secs_f64(),
        );
        let files = [
            ("PAPER-OBJECTS.md", head + &self.tables()),
            ("paper-objects.json", format!("{:#}\n", self.json())),
        ];
        for (name, text) in files {
            let path = directory.join(name);
            let text = format!("{}\n", text.trim_end());
            fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let rates = self.rates.iter().map(|rate| {
            let (server, mode) = (rate.server.name(), rate.mode.name());
            json!({"server": server, "mode": mode, "bytes": rate.size, "requests_per_second": rate.per_second})
        });
        let mut steps = Vec::new();
        for server in Server::ALL {
            for mode in Mode::ALL {
                for step in Span::ALL {
                    let times = self.sorted_steps(server, mode, step);
                    steps.push(json!({
                        "server": server.name(), "mode": mode.name(), "step": step.name(), "fetches": times.len(),
                        "median_us": quantile(&times, 0.5), "p99_us": quantile(&times, 0.99),
                    }));
                }
            }
        }
        json!({"commit": commit(), "rates": rates.collect::<Vec<_>>(), "steps": steps})
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_printed_beside_papers() {
        let mut report = Report::default();
        for (mode, rate) in [(Mode::Plain, 1000.0), (Mode::Held, 250.0)] {
            for change in [-1.0, 0.0, 1.0] {
                report.add_rate(Server::Lighttpd, mode, 1, rate + change);
            }
        }
        let fetch = |micros| Fetch {
            handshake: Duration::from_micros(10),
            response: Duration::from_micros(micros),
            total: Duration::from_micros(100),
        };
        report.add_fetches(Server::Lighttpd, Mode::Plain, vec![fetch(40); 3]);
        report.add_fetches(
            Server::Lighttpd,
            Mode::Held,
            vec![fetch(90), fetch(90), fetch(95)],
        );
        let text = report.tables();
        for line in [
            "| 1 | deferred (TRODS-KV) | 250 (249–251) | 0.250 | 10169 | 0.703 |",
            "| Req–Resp.1 | deferred (TRODS-KV) | 90 (95) | +50 | 256 (282) | +119 |",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
