//! A publisher of numbered messages and a subscriber, both unmodified programs of redis or mosquitto.

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::clients::{Scene, Served};
use crate::compare::Pauses;
use crate::program::Program;
use crate::raised;
use crate::server::Server;

/// Time from one message to the next.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(20);
/// Time after the last message in which a duplicate would be noticed.
const DUPLICATE_TIMEOUT: Duration = Duration::from_millis(300);
/// The channel, or the topic.
const TOPIC: &str = "demo";
/// The message behind the last number.
const END: &str = "end";

/// Publishes until the last kill, and checks that each message is delivered once, in order.
pub(crate) fn run(scene: &Scene<'_>, of: Server) -> Result<Served> {
    let messenger = Messenger { scene, of };
    let mut subscriber = messenger.subscribe()?;
    let (received, published) = thread::scope(|scope| {
        let publisher = scope.spawn(|| messenger.publish());
        let received = subscriber.receive();
        (received, publisher.join())
    });
    // The publisher's error explains missing messages best.
    let published = published.map_err(|_| anyhow::anyhow!("the publisher panicked"))??;
    let received = received?;
    ensure!(
        received.count == published,
        "{} messages were delivered of {published}",
        received.count
    );
    Ok(Served {
        connections: 2,
        count: received.count,
        bytes: received.bytes,
        pause: Some(received.pauses.longest()),
    })
}

/// Publisher and subscriber of a server.
struct Messenger<'a> {
    scene: &'a Scene<'a>,
    of: Server,
}

impl Messenger<'_> {
    /// The arguments of both programs.
    fn place(&self) -> [String; 4] {
        let [address, _] = self.scene.stage.addresses(self.of);
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        ["-h".to_owned(), ip, "-p".to_owned(), port]
    }

    /// Starts the subscriber, and returns after the subscription.
    fn subscribe(&self) -> Result<Subscriber> {
        let words: &[&str] = match self.of {
            Server::Mosquitto => &["mosquitto_sub", "-d", "-q", "2", "-t", TOPIC],
            _ => &["redis-cli", "SUBSCRIBE", TOPIC],
        };
        let place = self.place();
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        // With stdbuf, each line arrives when printed.
        let arguments = [&["-oL"], &words[..1], &place, &words[1..]].concat();
        let mut program = Program::start(self.scene, "stdbuf", &arguments)?;
        let lines = BufReader::new(program.output()?).lines();
        let mut this = Subscriber {
            program,
            lines,
            of: self.of,
            connects: 0,
        };
        ensure!(this.next()?.is_none(), "a message before the first one");
        Ok(this)
    }

    /// Publishes numbers from 1 on, and returns the last.
    fn publish(&self) -> Result<u64> {
        let (name, words): (_, &[&str]) = match self.of {
            Server::Mosquitto => ("mosquitto_pub", &["-d", "-q", "2", "-t", TOPIC, "-l"]),
            _ => ("redis-cli", &[]),
        };
        let place = self.place();
        let place = place.iter().map(String::as_str);
        let arguments: Vec<&str> = place.chain(words.iter().copied()).collect();
        let output = self.output();
        let mut program = Program::with_input(self.scene, name, &arguments, &output)?;
        let published = self.write(program.input()?);
        program.finish()?;
        let published = published?;
        let said = fs::read_to_string(&output)?;
        match self.of {
            Server::Mosquitto => one_connect(connects(said.lines()))?,
            _ => all_received(&said, published)?,
        }
        Ok(published)
    }

    /// Writes the publisher's output to this file.
    fn output(&self) -> PathBuf {
        self.scene.stage.scratch(&format!("publisher-{}", self.of))
    }

    fn write(&self, mut to: ChildStdin) -> Result<u64> {
        let (identify, publish) = match self.of {
            Server::Redis => ("CLIENT ID\n", format!("PUBLISH {TOPIC} ")),
            _ => ("", String::new()),
        };
        write!(to, "{identify}")?;
        let mut number = 0;
        let mut last = false;
        while !last {
            ensure!(!raised(self.scene.given_up), "given up");
            last = raised(self.scene.kills_over);
            number += 1;
            writeln!(to, "{publish}{number}")?;
            thread::sleep(MESSAGE_INTERVAL);
        }
        writeln!(to, "{publish}{END}")?;
        write!(to, "{identify}")?;
        Ok(number)
    }
}

/// Delivered messages.
#[derive(Default)]
struct Received {
    count: u64,
    bytes: u64,
    pauses: Pauses,
}

/// A subscriber that prints its messages.
struct Subscriber {
    program: Program,
    lines: Lines<BufReader<ChildStdout>>,
    of: Server,
    /// Connections of mosquitto_sub.
    connects: usize,
}

impl Subscriber {
    /// Receives all numbers in order, and the end without a further message.
    fn receive(&mut self) -> Result<Received> {
        let mut received = Received::default();
        loop {
            let message = self.next()?.context("it has subscribed again")?;
            received.pauses.progress();
            if message == END {
                break;
            }
            received.count += 1;
            ensure!(
                message == received.count.to_string(),
                "message {} came in the place of {}",
                message,
                received.count
            );
            received.bytes += u64::try_from(message.len())?;
        }
        // Any duplicate has arrived by then. Not SIGTERM: mosquitto_sub prints in the handler, even in the middle of a
        // print, and then prints that text twice.
        thread::sleep(DUPLICATE_TIMEOUT);
        self.program.kill()?;
        let mut rest = Vec::new();
        for line in &mut self.lines {
            rest.push(line?);
        }
        if self.of == Server::Mosquitto {
            one_connect(self.connects + connects(rest.iter().map(String::as_str)))?;
            rest.retain(|line| !is_own_word(line));
        }
        ensure!(rest.is_empty(), "after the last message came {rest:?}");
        Ok(received)
    }

    /// The next message; `None` for the line of the subscription.
    fn next(&mut self) -> Result<Option<String>> {
        let mut line = || match self.lines.next() {
            Some(line) => Ok(line?),
            None => bail!("the subscriber has ended"),
        };
        if self.of == Server::Redis {
            // Of three lines: kind, channel, and the message or the number of subscriptions.
            let [kind, _, message] = [line()?, line()?, line()?];
            return match kind.as_str() {
                "message" => Ok(Some(message)),
                "subscribe" => Ok(None),
                _ => bail!("redis-cli said: {kind} {message}"),
            };
        }
        loop {
            let line = line()?;
            if line.starts_with("Subscribed") {
                return Ok(None);
            }
            self.connects += connects([line.as_str()].into_iter());
            if !is_own_word(&line) {
                return Ok(Some(line));
            }
        }
    }
}

/// Whether the line is a message of mosquitto's client itself.
fn is_own_word(line: &str) -> bool {
    line.starts_with("Client ")
}

/// Counts the connections of mosquitto's client, which reconnects silently.
fn connects<'a>(lines: impl Iterator<Item = &'a str>) -> usize {
    lines
        .filter(|line| is_own_word(line) && line.ends_with(" sending CONNECT"))
        .count()
}

fn one_connect(connects: usize) -> Result<()> {
    ensure!(connects == 1, "{connects} connections instead of 1");
    Ok(())
}

/// redis-cli reconnects silently, too: the number of its connection must stay the same. The lines between tell the
/// number of receivers of each message.
fn all_received(said: &str, published: u64) -> Result<()> {
    let mut lines: Vec<&str> = said.lines().collect();
    let (last, first) = (lines.pop(), lines.first().copied());
    ensure!(
        first.is_some() && first == last,
        "the publisher's connection was {first:?} and is {last:?}"
    );
    ensure!(
        lines[1..].iter().all(|receivers| *receivers == "1"),
        "a message did not go to one subscriber"
    );
    // The end is a message, too.
    let received = u64::try_from(lines.len() - 1)?;
    ensure!(
        received == published + 1,
        "{received} answers to {published} messages and the end"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_publisher_has_single_connection() {
        assert!(all_received("7\n1\n1\n1\n7\n", 2).is_ok());
        for (wrong, why) in [
            ("7\n1\n1\n1\n8\n", "another connection"),
            ("7\n1\n0\n1\n7\n", "nobody heard one"),
            ("7\n1\n2\n1\n7\n", "two heard one"),
            ("7\n1\n1\n7\n", "an answer is missing"),
            ("7\n", "it did not go on"),
            ("", "it said nothing"),
        ] {
            assert!(all_received(wrong, 2).is_err(), "{why}");
        }
    }

    #[test]
    fn mosquitto_connections_are_counted() {
        let said = |text: &'static str| connects(text.lines());
        let once = "Client null sending CONNECT\nClient null received CONNACK (0)\n7\n";
        assert_eq!(said(once), 1);
        let again = "Client a sending CONNECT\n7\nClient a sending CONNECT\n";
        assert_eq!(said(again), 2);
        assert_eq!(said("somebody sending CONNECT\n"), 0);
    }
}
