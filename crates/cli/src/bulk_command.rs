//! `outlive send` and `outlive receive`.

use std::{
    io::{self, IsTerminal, Read, Write},
    net::{SocketAddr, ToSocketAddrs},
    os::fd::AsFd,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bulk::{
    BulkError, Fault,
    carrier::Progress,
    receiver::{self, Receiver},
    sender::{self, Destination, Item, Sender, Tree, Watch as _},
};
use channel::KeyRing;
use protocol::bulk::RelativePath;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use serve::{JSON_VERSION, Priority};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use crate::{
    arguments::{Receive, Send},
    exit::Outcome,
    stdout,
    units::bytes_in_words,
};

mod tree;

/// Pause between two looks of the progress line, and of `progress` events.
const LINE_PERIOD: Duration = Duration::from_millis(200);
const EVENT_PERIOD: Duration = Duration::from_secs(1);
/// Longest wait for standard input before a look at signals.
const INPUT_CHECK_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Most receivers of a transfer.
const RECEIVER_COUNT_MAX: usize = 64;

/// Prints the error, and returns the outcome by the fault.
fn failed(error: &BulkError) -> Outcome {
    stdout::fail(error.code(), error);
    outcome_of(error)
}

fn outcome_of(error: &BulkError) -> Outcome {
    match error.fault() {
        Fault::Config => Outcome::Config,
        Fault::Missing => Outcome::Unavailable,
        Fault::InTheWay => Outcome::NotNow,
        Fault::Transfer => Outcome::Failed,
        Fault::Permission => Outcome::NoPermission,
    }
}

/// Set by SIGINT and SIGTERM. A second signal ends the program at once.
fn stop_flag() -> Result<Arc<AtomicBool>, Outcome> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        let at_once = flag::register_conditional_default(signal, Arc::clone(&stop));
        let registered = at_once.and_then(|_| flag::register(signal, Arc::clone(&stop)));
        if let Err(error) = registered {
            stdout::fail("signals", &error);
            return Err(Outcome::Internal);
        }
    }
    Ok(stop)
}

/// An event as a line of JSON, or in words.
fn say(json: bool, priority: Priority, words: &str, mut event: Value) {
    let line = match json {
        true => {
            event["version"] = JSON_VERSION.into();
            event["message"] = words.into();
            event.to_string()
        }
        false => stdout::in_one_line(&format!("outlive: {words}")),
    };
    stdout::say(priority, &line);
}

// Receive.

pub(crate) fn receive(arguments: &Receive) -> Outcome {
    match run_receiver(arguments) {
        Ok(outcome) => outcome,
        Err(error) => failed(&error).of_service(),
    }
}

fn run_receiver(arguments: &Receive) -> Result<Outcome, BulkError> {
    let stop = match stop_flag() {
        Ok(stop) => stop,
        Err(outcome) => return Ok(outcome),
    };
    let settings = receiver::Settings {
        directory: arguments.directory.clone(),
        keys: KeyRing::load(&arguments.key_file)?,
        size_max: arguments.limit,
        quota: arguments.quota,
        is_durable: arguments.durable,
        replaces: !arguments.no_replace,
        transfers_max: arguments.transfers,
        keep_partial: arguments.keep_partial,
    };
    let receiver = Receiver::bind(arguments.listen, settings)?;
    let at = receiver.local()?;
    let (json, directory) = (arguments.json, arguments.directory.display());
    let words = format!("receives into {directory}; senders connect to {at}");
    let listening =
        json!({"event": "listening", "address": at, "directory": directory.to_string()});
    say(json, Priority::Notice, &words, listening);
    receiver.run(arguments.once, &ReceiverWatch { stop, json })?;
    Ok(Outcome::Done)
}

struct ReceiverWatch {
    stop: Arc<AtomicBool>,
    json: bool,
}

impl receiver::Watch for ReceiverWatch {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn on_event(&self, event: receiver::Event) {
        use receiver::Event::{Accepted, Connected, Expired, Failed, Rejected, Stored};
        let (priority, words, event) = match event {
            Connected { sender } => (
                Priority::Info,
                format!("{sender} has connected"),
                json!({"event": "connected", "sender": sender}),
            ),
            Accepted {
                sender,
                name,
                size,
                present,
            } => {
                let bytes = size.map_or("a stream".to_owned(), bytes_in_words);
                let there = match present {
                    0 => String::new(),
                    present => format!(", of which {} need not be sent", bytes_in_words(present)),
                };
                (
                    Priority::Info,
                    format!("{name}: {bytes} from {sender}{there}"),
                    json!({"event": "accepted", "sender": sender, "name": name, "bytes": size, "present": present}),
                )
            }
            Stored {
                sender,
                name,
                size,
                hash,
                milliseconds,
            } => (
                Priority::Notice,
                format!("{name}: {} are stored", bytes_in_words(size)),
                json!({"event": "stored", "sender": sender, "name": name, "bytes": size, "hash": hash, "took_ms": milliseconds}),
            ),
            Rejected {
                sender,
                name,
                reason,
            } => (
                Priority::Warning,
                format!("{name} of {sender} is not taken: {reason}"),
                json!({"event": "rejected", "sender": sender, "name": name, "reason": reason}),
            ),
            Failed { sender, reason } => (
                Priority::Warning,
                format!("the connection of {sender} has failed: {reason}"),
                json!({"event": "failed", "sender": sender, "reason": reason}),
            ),
            Expired { count } => (
                Priority::Notice,
                format!("unfinished files that have expired are removed: {count}"),
                json!({"event": "expired", "count": count}),
            ),
        };
        say(self.json, priority, &words, event);
    }
}

// Send.

/// Lowest speed to a receiver, bytes in a second: with a lower one, the first answer would come later than a sender
/// waits for an answer by UDP.
const RATE_MIN: u64 = 100_000;
/// Of a program that yields to all others (setpriority(2)).
const LOWEST_PRIORITY: i32 = 19;

pub(crate) fn send(arguments: &Send) -> Outcome {
    let stop = match stop_flag() {
        Ok(stop) => stop,
        Err(outcome) => return outcome,
    };
    let (sources, receivers) = match split(&arguments.sources_and_receivers) {
        Ok(split) => split,
        Err(words) => {
            stdout::fail("usage", &words);
            return Outcome::Usage;
        }
    };
    let count = u64::try_from(receivers.len()).unwrap_or(u64::MAX);
    if arguments.rate.is_some_and(|rate| rate / count < RATE_MIN) {
        stdout::fail("usage", &"the lowest --rate is 100kB for each receiver");
        return Outcome::Usage;
    }
    let keys = match KeyRing::load(&arguments.key_file) {
        Ok(keys) => keys,
        Err(error) => return failed(&error.into()),
    };
    let settings = sender::Settings {
        key: keys.first().clone(),
        policy: match arguments.background {
            true => blast::Policy::Background,
            false => blast::Policy::Full,
        },
        rate_max: arguments.rate,
        peer_timeout: arguments.peer_timeout,
        retry: arguments.retry,
        carrier: arguments.carrier.into(),
        connections: arguments.connections,
        compares: arguments.delta,
    };
    if arguments.background {
        // Other programs of this host go first, too. A process may always give way.
        let _ = rustix::process::nice(LOWEST_PRIORITY);
    }
    let names: Vec<String> = receivers.iter().map(|it| it.text.clone()).collect();
    let destinations = receivers.into_iter().map(|it| it.destination).collect();
    let watch = SenderWatch::new(stop, names, arguments.json);
    let mut sender = Sender::new(destinations, &settings, &watch);
    let mut outcome = Outcome::Done;
    for source in sources {
        if watch.is_stopped() {
            return Outcome::Failed;
        }
        match send_one(&mut sender, &watch, source) {
            Outcome::Done => {}
            failure if outcome == Outcome::Done || outcome == failure => outcome = failure,
            _ => outcome = Outcome::Failed,
        }
    }
    outcome
}

fn send_one(sender: &mut Sender<'_>, watch: &SenderWatch, source: &str) -> Outcome {
    if source != "-" {
        match Tree::open(Path::new(source)) {
            Ok(Some(tree)) => return tree::send(sender, watch, source, tree),
            Ok(None) => {}
            Err(error) => {
                stdout::fail_in_one_line(error.code(), &format!("{source}: {error}"));
                return outcome_of(&error);
            }
        }
    }
    let item = match source {
        "-" => RelativePath::new(b"stdin")
            .map(|name| {
                let input = Input {
                    stop: Arc::clone(&watch.stop),
                };
                Item::stream(Box::new(input), name)
            })
            .map_err(BulkError::from),
        path => Item::open(Path::new(path)),
    };
    let mut item = match item {
        Ok(item) => item,
        Err(error) => {
            stdout::fail_in_one_line(error.code(), &format!("{source}: {error}"));
            return outcome_of(&error);
        }
    };
    watch.begin(&item);
    let sent = sender.send(&mut item);
    watch.end();
    match sent {
        Ok(report) => {
            watch.summarize(source, &report);
            Outcome::Done
        }
        Err(errors) => {
            let mut outcome = None;
            for (receiver, error) in errors {
                let at = &watch.names[receiver];
                stdout::fail_in_one_line(error.code(), &format!("{source} to {at}: {error}"));
                let of_error = outcome_of(&error);
                outcome = match outcome {
                    None => Some(of_error),
                    Some(before) if before == of_error => Some(before),
                    Some(_) => Some(Outcome::Failed),
                };
            }
            outcome.unwrap_or(Outcome::Failed)
        }
    }
}

/// Standard input, until a signal comes: a read that waits does not notice the signal.
struct Input {
    stop: Arc<AtomicBool>,
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let stdin = io::stdin();
        while !self.stop.load(Ordering::Relaxed) {
            let mut all = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
            if poll(&mut all, Some(&INPUT_CHECK_TIME))? > 0 {
                // Not by the buffer of the library: `poll` does not know of bytes there.
                return Ok(rustix::io::read(&stdin, out)?);
            }
        }
        Err(io::Error::other("stopped by a signal"))
    }
}

/// A receiver as the user has written it.
struct NamedReceiver {
    text: String,
    destination: Destination,
}

/// Sources, and receivers behind.
fn split(words: &[String]) -> Result<(Vec<&str>, Vec<NamedReceiver>), String> {
    let is_receiver = |word: &String| parts(word).is_some();
    let first = words
        .iter()
        .rposition(|word| !is_receiver(word))
        .map_or(0, |it| it + 1);
    let (sources, receivers) = words.split_at(first);
    if receivers.is_empty() {
        let words = "no receiver: write HOST:PORT, [IPV6]:PORT or HOST:PORT/NAME behind the files";
        return Err(words.to_owned());
    }
    if sources.is_empty() {
        return Err(
            "nothing to send: write a file or a directory, or `-` for standard input, before the receivers"
                .to_owned(),
        );
    }
    if receivers.len() > RECEIVER_COUNT_MAX {
        return Err(format!("at most {RECEIVER_COUNT_MAX} receivers at once"));
    }
    let receivers: Result<Vec<_>, _> = receivers.iter().map(|word| resolve(word)).collect();
    let receivers = receivers?;
    let has_names = receivers.iter().any(|it| it.destination.name.is_some());
    if has_names && sources.len() > 1 {
        return Err(
            "a receiver with a NAME takes one file or directory: send each by itself".to_owned(),
        );
    }
    let lacks_name = receivers.iter().any(|it| it.destination.name.is_none());
    if lacks_name && sources.iter().any(|it| it == "-") {
        return Err("standard input has no name: write HOST:PORT/NAME".to_owned());
    }
    let is_v6 = |it: &NamedReceiver| it.destination.address.is_ipv6();
    if receivers.iter().any(is_v6) && !receivers.iter().all(is_v6) {
        return Err(
            "the receivers have addresses of two families: send to each family by itself"
                .to_owned(),
        );
    }
    Ok((sources.iter().map(String::as_str).collect(), receivers))
}

/// Host and port, and the name behind the slash.
fn parts(word: &str) -> Option<(&str, Option<&str>)> {
    let (host, name) = match word.split_once('/') {
        Some((host, name)) => (host, Some(name)),
        None => (word, None),
    };
    let (before, port) = host.rsplit_once(':')?;
    let is_host = !before.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0);
    is_host.then_some((host, name))
}

fn resolve(word: &str) -> Result<NamedReceiver, String> {
    let (host, name) = parts(word).ok_or_else(|| format!("{word:?} is no receiver"))?;
    let mut found = host
        .to_socket_addrs()
        .map_err(|error| format!("{host}: {error}"))?;
    let address: SocketAddr = found
        .next()
        .ok_or_else(|| format!("{host} has no address"))?;
    let name = name.map(|name| RelativePath::new(name.as_bytes()));
    let name = name
        .transpose()
        .map_err(|error| format!("{word}: {error}"))?;
    Ok(NamedReceiver {
        text: word.to_owned(),
        destination: Destination { address, name },
    })
}

struct SenderWatch {
    stop: Arc<AtomicBool>,
    names: Vec<String>,
    json: bool,
    has_terminal: bool,
    state: Mutex<LineState>,
}

/// The progress line.
struct LineState {
    name: String,
    size: Option<u64>,
    began: Instant,
    shown: Instant,
    /// Position at the beginning: bytes of an earlier attempt.
    first: Option<u64>,
    is_shown: bool,
}

impl SenderWatch {
    fn new(stop: Arc<AtomicBool>, names: Vec<String>, json: bool) -> Self {
        let now = Instant::now();
        Self {
            stop,
            names,
            json,
            has_terminal: io::stderr().is_terminal(),
            state: Mutex::new(LineState {
                name: String::new(),
                size: None,
                began: now,
                shown: now,
                first: None,
                is_shown: false,
            }),
        }
    }

    fn with_state<T>(&self, f: impl FnOnce(&mut LineState) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn begin(&self, item: &Item) {
        self.with_state(|state| {
            state.name = item.name().to_string();
            state.size = item.size();
            state.began = Instant::now();
            state.first = None;
        });
    }

    /// A line about a tree, if the last one is old enough.
    fn show(&self, words: &str, event: impl FnOnce() -> Value) {
        let period = if self.json { EVENT_PERIOD } else { LINE_PERIOD };
        if !self.json && !self.has_terminal {
            return;
        }
        let is_due = self.with_state(|state| {
            let is_due = state.shown.elapsed() >= period;
            if is_due {
                state.shown = Instant::now();
                state.is_shown |= !self.json;
            }
            is_due
        });
        if is_due && self.json {
            say(true, Priority::Info, "progress", event());
        } else if is_due {
            let _ = io::stderr().write_all(format!("\r{words}\x1b[K").as_bytes());
        }
    }

    /// Ends the progress line.
    fn end(&self) {
        self.with_state(|state| {
            if std::mem::take(&mut state.is_shown) {
                let _ = io::stderr().write_all(b"\r\x1b[K");
            }
        });
    }

    fn summarize(&self, source: &str, report: &sender::Report) {
        let seconds = self.with_state(|state| state.began.elapsed().as_secs_f64());
        let (packets, needed) = report.packets;
        let repeated = packets.saturating_sub(needed);
        let (arrived, predicted) = (report.arrived, report.predicted);
        let words = format!(
            "{source}: {} sent in {seconds:.1} s{}{}",
            bytes_in_words(report.size),
            match repeated {
                0 => String::new(),
                _ => format!(", {:.1} % of the packets twice", share(repeated, needed)),
            },
            match arrived.saturating_sub(predicted) * FEW_UNPREDICTED > arrived {
                true => predicted_in_words((arrived, predicted)),
                false => String::new(),
            }
        );
        let event = json!({
            "event": "done", "source": source, "bytes": report.size, "seconds": seconds,
            "packets": packets, "repeated": repeated, "arrived": arrived, "predicted": predicted, "hash": report.hash
        });
        say(self.json, Priority::Notice, &words, event);
    }

    fn on_progress(&self, progress: &Progress) {
        let period = if self.json { EVENT_PERIOD } else { LINE_PERIOD };
        if !self.json && !self.has_terminal {
            return;
        }
        let line = self.with_state(|state| {
            let first = *state.first.get_or_insert(progress.position);
            if state.shown.elapsed() < period {
                return None;
            }
            state.shown = Instant::now();
            state.is_shown |= !self.json;
            let seconds = state.began.elapsed().as_secs_f64();
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = progress.position.saturating_sub(first) as f64 / seconds.max(0.001);
            Some((state.name.clone(), state.size, rate))
        });
        let Some((name, size, rate)) = line else {
            return;
        };
        let repeated = progress.packets.saturating_sub(progress.needed);
        if self.json {
            let event = json!({
                "event": "progress", "name": name, "position": progress.position, "bytes": size,
                "bytes_per_second": rate, "packets": progress.packets,
                "arrived": progress.arrived, "predicted": progress.predicted
            });
            say(true, Priority::Info, "progress", event);
            return;
        }
        let of = size.map_or(String::new(), |size| {
            format!(" of {}", bytes_in_words(size))
        });
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate is positive"
        )]
        let rate = bytes_in_words(rate as u64);
        let repeated = match repeated {
            0 => String::new(),
            _ => format!(", {:.1} % repeated", share(repeated, progress.needed)),
        };
        let predicted = predicted_in_words((progress.arrived, progress.predicted));
        let position = bytes_in_words(progress.position);
        let line = format!("\r{name}: {position}{of}, {rate}/s{repeated}{predicted}\x1b[K");
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// The summary tells predictions if more than one of so many packets was not predicted.
const FEW_UNPREDICTED: u64 = 2000;

/// The packets that arrived as the receiver had predicted, of all that arrived.
fn predicted_in_words((arrived, predicted): (u64, u64)) -> String {
    match arrived {
        0 => String::new(),
        _ => format!(", {:.1} % as predicted", share(predicted, arrived)),
    }
}

fn share(part: u64, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    let share = part as f64 * 100.0 / whole.max(1) as f64;
    share
}

impl sender::Watch for SenderWatch {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn on_event(&self, event: sender::Event) {
        use sender::Event::{Accepted, NoDatagrams, Retry, Sent, Stored};
        if matches!(event, Retry { .. }) {
            // The next attempt begins elsewhere.
            self.with_state(|state| state.first = None);
        }
        let at = |receiver: usize| self.names[receiver].as_str();
        let (priority, words, event) = match event {
            sender::Event::Progress(progress) => return self.on_progress(&progress),
            Accepted { present: 0, .. } | Sent if !self.json => return,
            Accepted { receiver, present } => (
                Priority::Info,
                format!("{}: {} need not be sent", at(receiver), bytes_in_words(present)),
                json!({"event": "accepted", "receiver": at(receiver), "present": present}),
            ),
            Sent => (
                Priority::Info,
                "all data has arrived".to_owned(),
                json!({"event": "sent"}),
            ),
            Stored { receiver, hash } => (
                Priority::Info,
                format!("{} has stored the file", at(receiver)),
                json!({"event": "stored", "receiver": at(receiver), "hash": hash}),
            ),
            Retry { receiver, reason } => (
                Priority::Warning,
                format!("{}: {reason}; trying again", at(receiver)),
                json!({"event": "retry", "receiver": at(receiver), "reason": reason}),
            ),
            NoDatagrams => (
                Priority::Warning,
                "no UDP passes to the receivers: the data travels by TCP; let UDP pass on the receivers' port"
                    .to_owned(),
                json!({"event": "no_datagrams"}),
            ),
        };
        self.end();
        say(self.json, priority, &words, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn receivers_are_the_last_words() {
        let line = words("a b:1x ./c:7601 127.0.0.1:7601 127.0.0.2:7602");
        let (sources, receivers) = split(&line).expect("a line");
        assert_eq!(sources, ["a", "b:1x", "./c:7601"]);
        let at: Vec<_> = receivers
            .iter()
            .map(|it| it.destination.address.port())
            .collect();
        assert_eq!(at, [7601, 7602]);
        let line = words("- [::1]:7601/a/b");
        let (_, receivers) = split(&line).expect("a line");
        let name = receivers[0].destination.name.as_ref().expect("a name");
        assert_eq!(name.as_bytes(), b"a/b");
    }

    #[test]
    fn line_that_cannot_be_meant_is_refused_with_a_reason() {
        for (line, reason) in [
            ("a b", "no receiver"),
            ("127.0.0.1:1 127.0.0.1:2", "nothing to send"),
            ("- 127.0.0.1:1", "no name"),
            ("a b 127.0.0.1:1/c", "one file"),
            ("a 127.0.0.1:1/../c", "`..`"),
            ("a 127.0.0.1:1 [::1]:1", "two families"),
        ] {
            let line = words(line);
            let refused = split(&line).err().expect("an error");
            assert!(refused.contains(reason), "{line:?}: {refused}");
        }
    }
}
