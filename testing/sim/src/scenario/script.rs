//! The script of a client on the connection.

use std::ops::Range;

use rand::{Rng, rngs::SmallRng};
use recovery::ReplayMode;

use super::{Fault, noise, request, size};
use crate::{
    MS,
    conversation::{INCARNATION_DIGITS, Request},
};

/// A step of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScriptStep {
    Send(Vec<u8>),
    /// Continue after so many received bytes since the beginning.
    Await(usize),
    /// Wait for so long, ns.
    Pause(u64),
    HalfClose,
}

/// The end of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientEnd {
    /// The regular end.
    Completes,
    /// The client resets the connection at this time.
    Resets(u64),
    /// The client's host is switched off at this time.
    Vanishes(u64),
}

/// The steps of a client, and the right output.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) steps: Vec<ScriptStep>,
    /// All bytes that the client sends.
    pub(crate) instream: Vec<u8>,
    /// All bytes that the client must receive.
    pub(crate) outstream: Vec<u8>,
    /// Where in the outstream any byte is right the first time.
    pub(crate) any: Vec<Range<usize>>,
    /// Tickets: where the instream requests each, and where the outstream has the ticket.
    pub(crate) tickets: Vec<(usize, Range<usize>)>,
    /// All freely chosen bytes are the same byte.
    pub(crate) alike: bool,
    /// Where in the instream the client's next words begin, and the end of the outstream that the client hears before.
    pub(crate) heard_before: Option<(usize, Range<usize>)>,
    /// Where requests begin in the instream, and the responses in the outstream.
    pub(crate) turns: Vec<(usize, usize)>,
    pub(crate) fate: ClientEnd,
}

/// The rhythm of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rhythm {
    /// The next request when the last is answered.
    InTurn,
    /// Everything at once.
    Pipelined,
}

impl Script {
    pub(crate) fn drawn(rng: &mut SmallRng, mode: ReplayMode) -> Self {
        let count = match rng.random_range(0..8) {
            0 => rng.random_range(5..20),
            1 => 0,
            _ => rng.random_range(1..4),
        };
        let mut requests: Vec<Request> = (0..count).map(|_| request(rng, mode)).collect();
        match rng.random_range(0..4) {
            0 => requests.push(Request::GetAndClose(size(rng))),
            1 if mode == ReplayMode::Connection => {
                let length = size(rng);
                requests.push(Request::Upload(noise(rng, length)));
            }
            _ => {}
        }
        let manner = match mode {
            ReplayMode::Connection if rng.random_bool(0.3) => Rhythm::Pipelined,
            _ => Rhythm::InTurn,
        };
        let mut script = Self::of(&requests, manner, rng);
        script.fate = fate(rng);
        script
    }

    /// The script of the client that the fault affects.
    pub(crate) fn of_doom(fault: Fault, rng: &mut SmallRng) -> Self {
        let before = Request::Get(rng.random_range(1..2000));
        let requests = match fault {
            Fault::Poison => vec![before, Request::Poison],
            Fault::Divergence | Fault::None => {
                vec![
                    before,
                    Request::Life,
                    Request::Get(rng.random_range(1..90_000)),
                ]
            }
            Fault::RecordLimit => vec![before, Request::Put(noise(rng, 300_000))],
        };
        Self::of(&requests, Rhythm::InTurn, rng)
    }

    /// The script of a client that gets another response from each incarnation, behind responses with enough recorded
    /// bytes, and other responses that are short.
    pub(crate) fn of_divergence(rng: &mut SmallRng) -> Self {
        let mut requests = vec![Request::Get(rng.random_range(1..9000))];
        let short = rng.random_range(0..5);
        requests.extend((0..short).map(|_| Request::Get(rng.random_range(1..200))));
        requests.push(Request::Lives(rng.random_range(2..30_000)));
        requests.extend((0..short).map(|_| Request::Get(rng.random_range(1..200))));
        Self::of(&requests, Rhythm::InTurn, rng)
    }

    /// The script of a client whose response begins as always, and then differs in each incarnation.
    pub(crate) fn of_late_divergence(rng: &mut SmallRng) -> Self {
        let requests = [
            Request::Get(rng.random_range(4096..30_000)),
            Request::Lives(rng.random_range(2..30_000)),
        ];
        Self::of(&requests, Rhythm::Pipelined, rng)
    }

    /// The same, and the client sends another request after the response.
    pub(crate) fn of_late_divergence_and_requests(rng: &mut SmallRng) -> Self {
        let first = [
            (
                Request::Get(rng.random_range(4096..30_000)),
                Rhythm::Pipelined,
            ),
            (Request::Lives(rng.random_range(2..30_000)), Rhythm::InTurn),
        ];
        let more = (0..rng.random_range(1..4)).map(|_| Request::Get(rng.random_range(1..9000)));
        let more: Vec<_> = more.map(|request| (request, Rhythm::InTurn)).collect();
        let mut script = Self::of_each(&[&first[..], &more].concat(), rng);
        if let [_, (_, begins), (asked, ends), ..] = script.turns[..] {
            script.heard_before = Some((asked, begins..ends));
        }
        script
    }

    /// The script of a client that continues the upload after the response.
    pub(crate) fn of_early(rng: &mut SmallRng) -> Self {
        let before = Request::Get(rng.random_range(1..9000));
        let length = rng.random_range(1..100_000);
        let upload = Request::Keep(rng.random_range(1..9000), noise(rng, length));
        Self::of(&[before, upload], Rhythm::InTurn, rng)
    }

    /// The client waits for a while after each response, before the next request.
    pub(crate) fn thinks_before_more(&mut self, rng: &mut SmallRng) {
        let steps = std::mem::take(&mut self.steps);
        for step in steps {
            let waits = matches!(step, ScriptStep::Await(_));
            self.steps.push(step);
            if waits {
                self.steps
                    .push(ScriptStep::Pause(rng.random_range(0..600 * MS)));
            }
        }
    }

    /// The script of a client among several that take tickets from a server.
    pub(crate) fn with_tickets(rng: &mut SmallRng) -> Self {
        let count = rng.random_range(1..8);
        let mut requests: Vec<Request> = (0..count)
            .map(|_| match rng.random_range(0..5) {
                0 => request(rng, ReplayMode::Connection),
                _ => Request::Ticket,
            })
            .collect();
        match rng.random_range(0..5) {
            0 => requests.push(Request::GetAndClose(size(rng))),
            1 => {
                let length = size(rng);
                requests.push(Request::Upload(noise(rng, length)));
            }
            _ => {}
        }
        let manner = if rng.random_bool(0.3) {
            Rhythm::Pipelined
        } else {
            Rhythm::InTurn
        };
        let mut script = Self::of(&requests, manner, rng);
        script.fate = fate(rng);
        script
    }

    fn of(requests: &[Request], manner: Rhythm, rng: &mut SmallRng) -> Self {
        let each: Vec<_> = requests
            .iter()
            .map(|request| (request.clone(), manner))
            .collect();
        Self::of_each(&each, rng)
    }

    fn of_each(requests: &[(Request, Rhythm)], rng: &mut SmallRng) -> Self {
        let mut script = Self {
            steps: Vec::new(),
            instream: Vec::new(),
            outstream: Vec::new(),
            any: Vec::new(),
            tickets: Vec::new(),
            alike: false,
            heard_before: None,
            turns: vec![(0, 0)],
            fate: ClientEnd::Completes,
        };
        for (request, manner) in requests {
            script.add(request, *manner, rng);
        }
        if requests
            .last()
            .is_some_and(|(last, _)| matches!(last, Request::Upload(_) | Request::Keep(..)))
            || rng.random_bool(0.4)
        {
            script.steps.push(ScriptStep::HalfClose);
        } else {
            script.steps.push(ScriptStep::Await(script.outstream.len()));
        }
        script
    }

    fn add(&mut self, request: &Request, manner: Rhythm, rng: &mut SmallRng) {
        let (bytes, answer) = (request.encode(), request.answer());
        let at = self.outstream.len();
        if *request == Request::Life {
            self.any.push(at..at + INCARNATION_DIGITS);
        }
        if let Request::Lives(_) = request {
            self.any.push(at..at + answer.len());
            self.alike = true;
        }
        if *request == Request::Ticket {
            let asked = self.instream.len() + bytes.len();
            self.tickets.push((asked, at..at + answer.len()));
            self.any.push(at..at + answer.len());
        }
        let mut rest = &bytes[..];
        if let Request::Keep(_, body) = request {
            let (line, body) = bytes.split_at(bytes.len() - body.len());
            self.steps.push(ScriptStep::Send(line.to_vec()));
            self.steps.push(ScriptStep::Await(at + answer.len()));
            rest = body;
        }
        // In a single piece, or in a few with pauses between.
        while !rest.is_empty() {
            let whole = rest.len() < 2 || rng.random_bool(0.6);
            let length = if whole {
                rest.len()
            } else {
                rng.random_range(1..rest.len())
            };
            self.steps.push(ScriptStep::Send(rest[..length].to_vec()));
            rest = &rest[length..];
            if rng.random_bool(0.3) {
                self.steps.push(ScriptStep::Pause(pause(rng)));
            }
        }
        self.instream.extend(bytes);
        self.outstream.extend(answer);
        self.turns.push((self.instream.len(), self.outstream.len()));
        if manner == Rhythm::InTurn && !request.is_last() {
            self.steps.push(ScriptStep::Await(self.outstream.len()));
        }
    }
}

fn fate(rng: &mut SmallRng) -> ClientEnd {
    match rng.random_range(0..20) {
        0 => ClientEnd::Resets(rng.random_range(0..400 * MS)),
        1 => ClientEnd::Vanishes(rng.random_range(0..400 * MS)),
        _ => ClientEnd::Completes,
    }
}

fn pause(rng: &mut SmallRng) -> u64 {
    let longest = [1, 20, 200][rng.random_range(0..3)] * MS;
    rng.random_range(0..longest)
}
