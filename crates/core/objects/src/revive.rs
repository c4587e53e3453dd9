//! The revival of a connection at another member (TRODS 2.3): a small TCP client that asks the local server for the
//! rest.
//!
//! | step | |
//! |---|---|
//! | the client's segment | the echo tells where the body began ([`Position`]); the payload is the request |
//! | or its record | of a response that is in the store, the record tells both |
//! | SYN in the client's name | numbered so that the edited request ends where the client's request ends |
//! | the window of the client is shut | the request waits until the window opens |
//! | the request for the rest | the client's own request with another range |
//! | the head of the answer | judged ([`crate::judge`]): spliced, or reset with a reason |
//! | the splice | the flow that the programs translate from then on; bytes that came with the head go to the client |
//!
//! While a revival is under way, the programs let no segment pass: segments of both sides come here.

mod flow;
mod judged;
mod numbers;
mod outcome;
mod position;
mod question;
pub(crate) mod segments;
#[cfg(test)]
mod tests;

use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;

use http1::edit::{request_for_rest, request_with_inputs};
use http1::range::RangeRequest;
use http1::{Doubt, parse_request, parse_response};
use wire::{FlowKey, Segment, SeqNumber, SynOptions, Timestamps};

use self::numbers::of_numbers;
pub use self::outcome::{Action, Reason, Rejected};
pub(crate) use self::position::Fit;
pub use self::position::{Position, PositionError, WITHHOLD_MAX};
use self::question::{Question, checked, rest, with_beginning};
use self::segments::{Received, has_bytes_behind_hole};
use crate::flaws::Flaws;
use crate::flow::{Flow, RELEASED_BEYOND, RELEASED_MAX, Unprotected};
use crate::isn;
use crate::judge::{JudgeRules, Refusal};
use crate::key::PoolKey;
use crate::record::{Beginning, Record, StoredAnswer, StoredOptions, StoredTurn};
use crate::revivals::{AskedRequest, CLIENT_PAUSE_MAX};
use crate::timestamp::{State, Timestamp};
use crate::unreachable;

/// Time after which a segment to the local server is sent again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Bound of the difference between the clocks of two hosts of a pool, and of the host that made the files.
pub const CLOCK_DIFFERENCE: Duration = Duration::from_secs(5);
/// Longest way of a packet to a client: after a death, the last bytes of the dead server have arrived, or are lost.
pub const SETTLE_TIME: Duration = Duration::from_millis(500);
/// Segments sent to the local server without an answer, before the connection is reset: some seconds. A host that takes
/// the clients of another is busy.
const TRIES_MAX: u32 = 32;
/// Pauses before the next question to a server that answers with a failure (5xx). A server that has just started may
/// still lack its own servers.
const FAILURE_PAUSES: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];
/// How often a revival sees the lowest segment of a client that is not the request of the response: the first time, as
/// a probe of the tail (RFC 8985), and with the timer, which repeats the lowest of all.
const LATER_REQUESTS_MAX: u32 = 4;

/// Knowledge of a member for all revivals.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Key of the pool.
    pub key: PoolKey,
    /// How answers are judged.
    pub judge: JudgeRules,
    /// Life of the local server.
    pub incarnation: u32,
    /// Time since the Unix epoch.
    pub unix_now: Duration,
    /// Longest time for which a request stays unacknowledged: no download that an echo tells of has begun earlier.
    pub withhold: Duration,
    /// From then on, no byte of a server that has died is on its way to a client (the clock of `now`). A request whose
    /// response may have begun at that server is not asked before: the client would get parts of two responses.
    pub settled_at: Duration,
}

/// A revival under way.
#[derive(Debug, Clone)]
pub struct Revival {
    key: FlowKey,
    rules: Rules,
    flaws: Flaws,
    client: ClientView,
    position: Position,
    /// The turn of the record, if the position is of a record, and the inputs of its response.
    stored: Option<StoredTurn>,
    inputs: Option<Vec<u8>>,
    /// The response of that turn is in chunks.
    chunks: Option<Beginning>,
    /// Number of the next request, of a client without timestamps.
    next_turn: Option<u32>,
    /// The request that was passed to the server as it is, of such a client.
    asked: Option<AskedRequest>,
    stage: Stage,
    /// When the last segment for the server is sent again.
    retry_at: Duration,
    tries: u32,
    /// Answers of the server that were failures.
    failures: usize,
}

/// State of the client, as its segments tell.
#[derive(Debug, Clone, Copy)]
struct ClientView {
    /// Of a client without timestamps: 0.
    echo: Timestamp,
    /// Agreed in the handshake.
    options: StoredOptions,
    /// The client's acknowledgement when the revival began: the first byte that the client lacks.
    ack: SeqNumber,
    /// The newest acknowledgement.
    newest_ack: SeqNumber,
    nxt: SeqNumber,
    tsval: u32,
    window: u16,
    /// Interface on which the client's packets arrive.
    interface: u32,
}

#[derive(Debug, Clone)]
enum Stage {
    /// The client's segments had no request so far, or a later request than the request of the response.
    AwaitsRequest {
        /// The lowest segment with a later request, and how often it came.
        lowest: Option<SeqNumber>,
        sightings: u32,
    },
    /// The client's window is shut. The first flight of the local server would be lost at the client, and the server's
    /// timer, which doubles, would outlast the pause.
    AwaitsWindow(Question),
    Connects(Question),
    Asks(Question, Connected, Received),
    Done,
}

/// The local server's part of the handshake.
#[derive(Debug, Clone, Copy)]
struct Connected {
    isn: SeqNumber,
    tsval: u32,
    window: u16,
    window_scale: u8,
}

impl Connected {
    /// Before the server has answered.
    const fn none() -> Self {
        Self {
            isn: SeqNumber(0),
            tsval: 0,
            window: 0,
            window_scale: 0,
        }
    }
}

impl Revival {
    /// A revival for a segment of a client. `now`: any clock that only advances.
    ///
    /// # Errors
    /// The segment has no timestamps, or its echo tells no position.
    pub fn new(
        key: FlowKey,
        rules: Rules,
        segment: &Segment<'_>,
        interface: u32,
        now: Duration,
    ) -> Result<(Self, Vec<Action>), Rejected> {
        let no_store = Err(PositionError::NoStore);
        Self::with_record(key, rules, (segment, interface), no_store, now)
    }

    /// Whether a segment with this echo needs the record of its connection.
    #[must_use]
    pub fn needs_record(segment: &Segment<'_>) -> bool {
        let echo = segment.timestamps().map(|stamps| stamps.echo);
        match echo.map(|echo| Timestamp::from_wire(echo).state) {
            None | Some(State::Stored { .. }) => true,
            // The client may be further than its echo tells.
            Some(State::Later { .. }) => with_beginning(segment.payload()).1 >= RELEASED_BEYOND,
            Some(State::Agreed { .. } | State::First { .. }) => false,
        }
    }

    /// The same, with the record of the connection, or the reason why there is none.
    ///
    /// # Errors
    /// As [`Revival::new`]; and [`Reason::Idle`].
    pub fn with_record(
        key: FlowKey,
        rules: Rules,
        client: (&Segment<'_>, u32),
        record: Result<&Record, PositionError>,
        now: Duration,
    ) -> Result<(Self, Vec<Action>), Rejected> {
        Self::with_flaws(key, (rules, Flaws::default()), client, record, now)
    }

    pub(crate) fn with_flaws(
        key: FlowKey,
        (rules, flaws): (Rules, Flaws),
        (segment, interface): (&Segment<'_>, u32),
        record: Result<&Record, PositionError>,
        now: Duration,
    ) -> Result<(Self, Vec<Action>), Rejected> {
        let rejected = |reason: Reason| Rejected {
            reason,
            reset: segments::reset(key, segment.ack(), segment.end_seq()),
        };
        let stamps = segment.timestamps();
        let Timestamps { value, echo } = stamps.unwrap_or(Timestamps { value: 0, echo: 0 });
        let echo = Timestamp::from_wire(echo);
        let renumbered = match echo.state {
            State::Stored { slot, .. } => record.ok().and_then(|record| {
                let server_isn = isn::initial(&rules.key, &key, slot);
                flaws.renumbered(record, slot, server_isn, segment.seq())
            }),
            _ => None,
        };
        let record = renumbered.as_ref().map_or(record, Ok);
        let found = match echo.state {
            State::Stored { slot, options, .. }
                if record == Err(PositionError::RecordMissing) && !flaws.tells_missing() =>
            {
                let idle = Position::idle((slot, options), &rules.key, &key, segment.seq());
                Ok((idle, None))
            }
            _ if stamps.is_none() => of_numbers((&rules.key, &key), segment, record),
            State::Stored { .. } => record.and_then(|record| {
                Position::of_record(echo.state, &rules.key, &key, segment, record)
            }),
            State::Later { .. }
                if Self::needs_record(segment) && record != Err(PositionError::NoStore) =>
            {
                let released = with_beginning(segment.payload()).1;
                let start = segment.seq() - u32::from(released);
                record.and_then(|record| {
                    Position::of_repetition(start, &rules.key, &key, segment.ack(), record)
                })
            }
            state => Position::of(state, &rules.key, &key, segment.ack()).map(|it| (it, None)),
        };
        let (position, stored) = found.map_err(|error| rejected(error.into()))?;
        let is_idle = matches!(position, Position::Idle { .. });
        let last_turn = record.ok().and_then(|record| record.turns.last());
        let untold = last_turn.filter(|_| stamps.is_none());
        let objection = untold.filter(|_| is_idle);
        if let Some(rejected) =
            objection.and_then(|turn| numbers::objection(key, &rules, segment, turn, now))
        {
            return Err(rejected);
        }
        if is_idle && segment.payload().is_empty() {
            let (reason, reset) = (Reason::Idle, None);
            return Err(Rejected { reason, reset });
        }
        let mut revival = Self {
            key,
            rules,
            flaws,
            client: ClientView {
                echo,
                options: match (record, echo.state) {
                    (Ok(record), State::Stored { .. }) => record.options,
                    (Ok(record), _) if stamps.is_none() || stored.is_some() => record.options,
                    _ => StoredOptions::of_rounded(position.options()),
                },
                ack: segment.ack(),
                newest_ack: segment.ack(),
                nxt: segment.end_seq(),
                tsval: value,
                window: segment.window(),
                interface,
            },
            position,
            stored: stored.cloned(),
            inputs: record.ok().and_then(|record| record.inputs.clone()),
            chunks: record.ok().and_then(|record| record.chunks),
            next_turn: untold.map(|turn| turn.number.wrapping_add(1)),
            asked: None,
            stage: Stage::AwaitsRequest {
                lowest: None,
                sightings: 0,
            },
            // A client that never repeats its request is gone.
            retry_at: now + CLIENT_PAUSE_MAX,
            tries: 0,
            failures: 0,
        };
        if is_idle && revival.stored.is_some() {
            if now < rules.settled_at {
                let (reason, reset) = (Reason::Idle, None);
                return Err(Rejected { reason, reset });
            }
            if has_bytes_behind_hole(segment) {
                return Err(rejected(PositionError::HeaderPart.into()));
            }
        }
        let question = revival.stored_question(segment);
        // No part of the record's response is known to the client.
        revival.stored = revival.stored.filter(|_| !is_idle);
        let actions = match question {
            None => revival.on_client(segment, now),
            Some(Ok(question)) => {
                revival.stage = Stage::Connects(question);
                revival.ask(now)
            }
            Some(Err(reason)) => return Err(rejected(reason)),
        };
        Ok((revival, actions))
    }

    /// The question of a response whose request is in the record.
    fn stored_question(&self, segment: &Segment<'_>) -> Option<Result<Question, Reason>> {
        let turn = self.stored.as_ref()?;
        let is_behind = !segment.seq().before(turn.request_end());
        let released = segment.seq().distance_from(turn.request_start);
        let released = released.and_then(|released| u8::try_from(released).ok());
        // A client that has sent the request, and holds it, has the same number in a segment without payload. The least
        // is certain; with the next echo of the client the programs acknowledge the rest, if no client needs to hold
        // its request.
        let has_timestamps = segment.timestamps().is_some();
        let released = match is_behind && has_timestamps {
            true => self.flaws.released_with_response(turn.number),
            false => released.unwrap_or(0).min(RELEASED_MAX),
        };
        let question = self.question(&turn.request, turn.request_start, released);
        let is_acknowledged = is_behind && !has_timestamps;
        Some(question.map(|question| Question {
            is_acknowledged,
            ..question
        }))
    }

    /// The turn of the record, if the record tells the position.
    #[must_use]
    pub const fn stored(&self) -> Option<&StoredTurn> {
        self.stored.as_ref()
    }

    /// The request whose response waits for a record.
    #[must_use]
    pub fn asked(&self) -> Option<AskedRequest> {
        self.asked.clone()
    }

    /// The flow while the revival is under way: no segment passes.
    #[must_use]
    pub fn placeholder(&self) -> Flow {
        flow::placeholder(&self.client, &self.rules, &self.key, &self.position)
    }

    /// Whether the revival is over.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// Bytes of the response body that the client has; `None` if no response was under way.
    #[must_use]
    pub const fn offset(&self) -> Option<u64> {
        match self.position {
            Position::Body { offset, .. } => Some(offset),
            Position::Idle { .. } => None,
        }
    }

    /// The request target, if the request is known and is text.
    #[must_use]
    pub fn target(&self) -> Option<&str> {
        let (Stage::AwaitsWindow(question) | Stage::Connects(question) | Stage::Asks(question, ..)) =
            &self.stage
        else {
            return None;
        };
        core::str::from_utf8(&question.bytes)
            .ok()?
            .split(' ')
            .nth(1)
    }

    /// When [`Revival::on_time`] has something to do.
    #[must_use]
    pub const fn deadline(&self) -> Duration {
        if self.is_over() {
            Duration::MAX
        } else {
            self.retry_at
        }
    }

    /// A segment of the client.
    pub fn on_client(&mut self, segment: &Segment<'_>, now: Duration) -> Vec<Action> {
        self.client.nxt = self.client.nxt.max_seq(segment.end_seq());
        if segment.ack().after(self.client.newest_ack) {
            self.client.newest_ack = segment.ack();
        }
        self.client.window = segment.window();
        if let Some(timestamps) = segment.timestamps() {
            self.client.tsval = timestamps.value;
        }
        if self.awaits_client() {
            self.retry_at = now + CLIENT_PAUSE_MAX;
        }
        if let Stage::AwaitsWindow(question) = &self.stage {
            let question = question.clone();
            return self.ask_open_window(question, segment, now);
        }
        if !matches!(self.stage, Stage::AwaitsRequest { .. }) || segment.payload().is_empty() {
            return Vec::new();
        }
        let is_idle = matches!(self.position, Position::Idle { .. });
        if is_idle && now < self.rules.settled_at {
            // Bytes of a dead server may still be on their way. The client sends the request again.
            return Vec::new();
        }
        let (request, released) = with_beginning(segment.payload());
        let start = segment.seq() - u32::from(released);
        let (rules, key) = (&self.rules, &self.key);
        let fit = (self.position).fits(&rules.key, key, start, released, self.flaws);
        // Bytes behind a hole, or in order since the segment with which the revival began.
        let has_more = self.client.newest_ack != self.client.ack;
        let has_bytes = self.flaws.sees_holes() && (has_more || has_bytes_behind_hole(segment));
        match fit {
            Fit::Later => return self.on_later_request(segment.seq()),
            // The bytes are of a response whose first segment was lost. Another server may write another header.
            Fit::Asked if is_idle && has_bytes => {
                return self.refuse(PositionError::HeaderPart.into());
            }
            Fit::Next if has_bytes => return self.refuse(PositionError::HeaderPart.into()),
            Fit::Next if now < rules.settled_at => return Vec::new(),
            Fit::Next => self.position = self.position.behind(&rules.key, key, start),
            Fit::Asked => {}
        }
        match self.question(&request, start, released) {
            Ok(question) => self.ask_open_window(question, segment, now),
            Err(reason) => self.refuse(reason),
        }
    }

    /// Whether the revival waits for a request that the client does not repeat: the client's echo says now that a store
    /// has the request. A call of another member may have acknowledged the request.
    pub(crate) fn is_outdated_by(&self, segment: &Segment<'_>) -> bool {
        let is_stored = |echo: Timestamp| matches!(echo.state, State::Stored { .. });
        let stamps = segment.timestamps();
        let echo = stamps.map(|stamps| Timestamp::from_wire(stamps.echo));
        let awaits_request = matches!(self.stage, Stage::AwaitsRequest { .. });
        awaits_request && echo.is_some_and(is_stored) && !is_stored(self.client.echo)
    }

    /// Whether the client's next segment is awaited.
    const fn awaits_client(&self) -> bool {
        matches!(
            self.stage,
            Stage::AwaitsRequest { .. } | Stage::AwaitsWindow(_)
        )
    }

    /// Asks the local server, if the client's window is open. A client tells of an open window at once. If that segment
    /// is lost, the next repetition of the request tells.
    fn ask_open_window(
        &mut self,
        question: Question,
        segment: &Segment<'_>,
        now: Duration,
    ) -> Vec<Action> {
        if self.client.window > 0 || matches!(self.position, Position::Idle { .. }) {
            self.stage = Stage::Connects(question);
            self.tries = 0;
            return self.ask(now);
        }
        let repeated = question.start + u32::from(question.released);
        self.stage = Stage::AwaitsWindow(question);
        let is_repeated = !segment.payload().is_empty();
        let message = is_repeated.then(|| unreachable::about(self.key, repeated));
        message
            .flatten()
            .map(Action::ToClient)
            .into_iter()
            .collect()
    }

    /// The client's timer brings the request of the position: the lowest of all that are not acknowledged.
    fn on_later_request(&mut self, seq: SeqNumber) -> Vec<Action> {
        let Stage::AwaitsRequest { lowest, sightings } = &mut self.stage else {
            return Vec::new();
        };
        if lowest.is_none_or(|lowest| seq.before(lowest)) {
            *lowest = Some(seq);
            *sightings = 0;
        }
        if *lowest == Some(seq) {
            *sightings += 1;
        }
        if *sightings >= LATER_REQUESTS_MAX {
            return self.refuse(Reason::LaterRequest);
        }
        Vec::new()
    }

    /// Sends the SYN or the request, again if necessary.
    fn ask(&mut self, now: Duration) -> Vec<Action> {
        self.retry_at = now + RETRY_INTERVAL;
        self.tries += 1;
        if self.tries > TRIES_MAX {
            return self.refuse(Reason::NoServer);
        }
        let packet = match &self.stage {
            Stage::Connects(question) => {
                segments::syn(self.key, &self.client, question, self.client.options)
            }
            Stage::Asks(question, connected, _) => segments::request(
                self.key,
                &self.client,
                question,
                connected,
                self.client.options,
            ),
            Stage::AwaitsRequest { .. } | Stage::AwaitsWindow(_) | Stage::Done => None,
        };
        packet.map(Action::ToServer).into_iter().collect()
    }

    /// The time has come that [`Revival::deadline`] told.
    pub fn on_time(&mut self, now: Duration) -> Vec<Action> {
        if now < self.retry_at || self.is_over() {
            return Vec::new();
        }
        if self.awaits_client() {
            self.stage = Stage::Done;
            let (reason, reset) = (Reason::Silent, None);
            return Vec::from([Action::Refuse { reason, reset }]);
        }
        self.ask(now)
    }

    /// A segment of the local server.
    pub fn on_server(&mut self, segment: &Segment<'_>, now: Duration) -> Vec<Action> {
        use wire::Flags;
        if segment.flags().contains(Flags::RST) {
            // Nobody listens yet, or the server does not want the connection: the next try comes in time.
            return Vec::new();
        }
        match &mut self.stage {
            Stage::Connects(question) => {
                let is_answer = segment.flags().contains(Flags::SYN.union(Flags::ACK))
                    && segment.ack() == question.syn() + 1;
                if !is_answer {
                    return Vec::new();
                }
                let options = SynOptions::parse(segment.option_bytes());
                let connected = Connected {
                    isn: segment.seq(),
                    tsval: options.timestamps.map_or(0, |timestamps| timestamps.value),
                    window: segment.window(),
                    window_scale: options.window_scale.unwrap_or(0),
                };
                let received = Received::new(segment.seq() + 1);
                self.stage = Stage::Asks(question.clone(), connected, received);
                self.tries = 0;
                if matches!(self.position, Position::Idle { .. }) {
                    return self.splice_idle(now);
                }
                self.ask(now)
            }
            Stage::Asks(_, connected, received) => {
                if let Some(timestamps) = segment.timestamps() {
                    connected.tsval = timestamps.value;
                }
                received.add(segment);
                self.on_answer(now)
            }
            Stage::AwaitsRequest { .. } | Stage::AwaitsWindow(_) | Stage::Done => Vec::new(),
        }
    }

    /// No response was under way: the request passes as the client sent it, and so does the answer.
    fn splice_idle(&mut self, now: Duration) -> Vec<Action> {
        if self.client.newest_ack != self.client.ack {
            // A dead member has sent a part of the response.
            return self.refuse(PositionError::HeaderPart.into());
        }
        let Stage::Asks(question, connected, _) = &self.stage else {
            return Vec::new();
        };
        let mut flow = flow::asked(
            &self.client,
            &self.rules,
            &self.key,
            &self.position,
            question,
            connected,
            now,
        );
        flow.turn.number = self.next_turn.unwrap_or(flow.turn.number);
        self.asked = self.next_turn.map(|_| AskedRequest {
            start: question.start,
            bytes: question.bytes.clone(),
        });
        let request = segments::request(
            self.key,
            &self.client,
            question,
            connected,
            self.client.options,
        );
        let mut actions = Vec::from([Action::Splice(Box::new(flow))]);
        actions.extend(request.map(Action::ToServer));
        self.stage = Stage::Done;
        actions
    }

    /// Judges the answer as soon as its head is whole.
    fn on_answer(&mut self, now: Duration) -> Vec<Action> {
        let Stage::Asks(question, connected, received) = &self.stage else {
            return Vec::new();
        };
        let head = match parse_response(received.bytes(), question.method) {
            Ok(None) if received.is_full() => return self.refuse(Reason::LongHead),
            Ok(None) => return Vec::new(),
            Ok(Some(head)) => head,
            Err(doubt) => return self.refuse(Refusal::Doubt(doubt).into()),
        };
        let judged = self.judged(question, &head, received);
        if (500..=599).contains(&head.status)
            && let Some(pause) = FAILURE_PAUSES.get(self.failures)
        {
            return self.ask_later(now + *pause);
        }
        let (question, connected, received) = (question.clone(), *connected, received.clone());
        match judged {
            Ok(None) => self.acknowledge(&connected, &received),
            Ok(Some(answer)) => {
                self.stage = Stage::Done;
                let splice = flow::Splice {
                    client: &self.client,
                    rules: &self.rules,
                    key: &self.key,
                    position: &self.position,
                    stored: self.stored.as_ref(),
                    question: &question,
                    connected: &connected,
                    now,
                };
                splice.actions(&answer, &received)
            }
            Err(reason) => self.refuse(reason),
        }
    }

    /// The server has answered with a failure: a connection of its own brings the next answer.
    fn ask_later(&mut self, at: Duration) -> Vec<Action> {
        let Stage::Asks(question, ..) = &self.stage else {
            return Vec::new();
        };
        let question = question.clone();
        let resets = self.resets_for_server();
        self.failures += 1;
        self.stage = Stage::Connects(question);
        self.tries = 0;
        self.retry_at = at;
        resets
    }

    fn refuse(&mut self, reason: Reason) -> Vec<Action> {
        let resets = self.resets_for_server();
        self.stage = Stage::Done;
        let reset = segments::reset(self.key, self.client.newest_ack, self.client.nxt);
        let mut actions = resets;
        actions.push(Action::Refuse { reason, reset });
        actions
    }

    /// Ends the connection to the local server, in the client's name: at either number that its TCP may expect.
    fn resets_for_server(&self) -> Vec<Action> {
        let (Stage::Connects(question) | Stage::Asks(question, ..)) = &self.stage else {
            return Vec::new();
        };
        let numbers = [question.first(), question.end];
        let resets = numbers.map(|seq| segments::reset_of_client(self.key, seq));
        resets.into_iter().flatten().map(Action::ToServer).collect()
    }

    /// The question to the local server, from the client's request that begins at `start`.
    fn question(&self, request: &[u8], start: SeqNumber, released: u8) -> Result<Question, Reason> {
        let head = parse_request(request)
            .map_err(|_| Reason::Request(Unprotected::NotHttp))?
            .ok_or(Reason::Request(Unprotected::SplitRequest))?;
        let of_record = self.stored_answer().and_then(StoredAnswer::range);
        let own_range = match (self.position, checked(&head)) {
            // The range passes as the client sent it.
            (Position::Idle { .. }, Err(Reason::OwnRange)) => Some(RangeRequest::From(0)),
            // The last bytes of an object: the record has the first of these.
            (Position::Body { .. }, Err(Reason::OwnRange)) if of_record.is_some() => of_record,
            (_, checked) => checked?,
        };
        let bytes = match self.position {
            Position::Idle { .. } => request[..head.len].to_vec(),
            Position::Body { offset, .. } => {
                // With a byte that the client has: also a client that has everything gets an answer that tells the
                // version. (416 tells the length, if that.)
                let own = own_range.unwrap_or(RangeRequest::From(0));
                let rest = rest(own, offset.saturating_sub(1)).ok_or(Reason::OwnRange)?;
                let doubtful = |doubt: Doubt| Reason::Answer(Refusal::Doubt(doubt));
                let edited = match self.chunks {
                    // No range of chunks can be asked for.
                    Some(_) => request[..head.len].to_vec(),
                    None => request_for_rest(request, rest, None, false).map_err(doubtful)?,
                };
                match &self.inputs {
                    Some(inputs) => request_with_inputs(&edited, inputs).map_err(doubtful)?,
                    None => edited,
                }
            }
        };
        let head_len =
            u32::try_from(head.len).map_err(|_| Reason::Request(Unprotected::SplitRequest))?;
        Ok(Question {
            bytes,
            start,
            end: start + head_len,
            released,
            is_acknowledged: false,
            method: head.method,
            own_range: own_range.unwrap_or(RangeRequest::From(0)),
            has_own_range: own_range.is_some(),
        })
    }
}
