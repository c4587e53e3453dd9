//! Responses to requests about the record.

use journal::{Journal, ReadError, State, Summary, Unprotected};
use protocol::{
    Digest, Versions,
    control::{
        DIGEST_LEN, ErrorCode, HEAD_OVERHEAD, MAX_DATA, PLACE_LEN, RecordSummary, Request,
        Response, Statistics,
    },
    mirror,
};
use wire::FlowId;

use crate::ingest::{Ingest, digest_of};

/// Answers requests from the record.
#[derive(Debug, Clone, Copy)]
pub struct RpcHandler {
    pid: u32,
}

impl RpcHandler {
    /// A handler of the process `pid`.
    #[must_use]
    pub const fn new(pid: u32) -> Self {
        Self { pid }
    }

    /// The responses to a request, in order; none to a [`Request::Shutdown`].
    #[must_use]
    pub fn answer(&self, ingest: &mut Ingest, request: &Request) -> Vec<Response> {
        match request {
            Request::Hello { frames, .. } => vec![self.hello(*frames)],
            Request::Summaries => summaries(&ingest.journal),
            Request::Read {
                flow,
                from,
                max_len,
            } => {
                let max = usize::try_from(*max_len).unwrap_or(MAX_DATA).min(MAX_DATA);
                let mut bytes = Vec::new();
                vec![match ingest.journal.read(*flow, *from, max, &mut bytes) {
                    Ok(_) => Response::Data {
                        flow: *flow,
                        from: *from,
                        bytes,
                    },
                    Err(error) => Response::Error {
                        code: code_of(error),
                        message: error.to_string(),
                    },
                }]
            }
            Request::OutstreamHeads { flow } => heads(&ingest.journal, *flow),
            Request::Beginnings { flow } => beginnings(&ingest.journal, *flow),
            Request::Digests { flow } => digests(&ingest.journal, *flow),
            Request::Unprotect { flow } => {
                ingest.journal.unprotect(*flow, Unprotected::Requested);
                Vec::new()
            }
            Request::Statistics => vec![Response::Statistics(statistics(ingest))],
            Request::HoldTurns { hold } => {
                ingest.journal.hold_turns(*hold);
                Vec::new()
            }
            Request::Release { places } => {
                for (flow, to) in places {
                    ingest.journal.release(*flow, *to);
                }
                Vec::new()
            }
            Request::Shutdown => Vec::new(),
            // Only a logger on another machine handles the other requests.
            _ => vec![Response::Error {
                code: ErrorCode::BadRequest,
                message: "this logger reads a ring".into(),
            }],
        }
    }

    fn hello(&self, frames: Versions) -> Response {
        match mirror::VERSIONS.agree(frames) {
            Some(frames) => Response::Hello {
                pid: self.pid,
                frames,
            },
            None => Response::Error {
                code: ErrorCode::NoCommonVersion,
                message: no_common_frame(frames),
            },
        }
    }
}

/// Why a host with these versions of the mirror frame is refused.
pub(crate) fn no_common_frame(host: Versions) -> String {
    format!(
        "the logger speaks {} of the mirror frame, the host {host}: upgrade the older outlive, one version at a time",
        mirror::VERSIONS
    )
}

fn code_of(error: ReadError) -> ErrorCode {
    match error {
        ReadError::Unknown => ErrorCode::UnknownFlow,
        ReadError::Unprotected(_) => ErrorCode::Unprotected,
        ReadError::Dropped(_) | ReadError::NotRecorded(_) => ErrorCode::NotKept,
    }
}

fn summaries(journal: &Journal) -> Vec<Response> {
    let all: Vec<RecordSummary> = journal
        .summaries()
        .map(|summary| record_summary(journal, &summary))
        .collect();
    pages(&all, RecordSummary::PER_MESSAGE, |summaries, last| {
        Response::Summaries { summaries, last }
    })
}

/// A list in messages of `per_message` items. There is at least one message, and the last message is marked.
pub(crate) fn pages<T: Clone>(
    all: &[T],
    per_message: usize,
    message: impl Fn(Vec<T>, bool) -> Response,
) -> Vec<Response> {
    let count = all.len().div_ceil(per_message).max(1);
    let mut parts = all.chunks(per_message);
    let page = |number| {
        let part = parts.next().unwrap_or_default().to_vec();
        message(part, number == count)
    };
    (1..=count).map(page).collect()
}

/// The logger's answer about one connection.
#[must_use]
pub fn record_summary(journal: &Journal, summary: &Summary) -> RecordSummary {
    let (client_isn, server_isn) = (summary.client_isn, summary.server_isn);
    let mut answer = RecordSummary::fresh(summary.flow, client_isn, server_isn);
    match summary.state {
        State::Unprotected(reason) => answer.unprotected = Some(reason.into()),
        State::Protected(record) => {
            answer.start = record.start.instream;
            answer.turn_instream = record.turn.instream;
            answer.turn_outstream = record.turn.outstream;
            let [oldest, next, _, end] = record.answers;
            answer.answers = [oldest, next];
            answer.doubt = record.doubt;
            answer.stable_seq = record.data_end();
            answer.client_fin = record.stable_fin();
            // Earlier heads are not counted: counting would hide that later heads are missing.
            let mut heads = journal.outstream_ranges(summary.flow);
            answer.outstream_end = heads.next().map(|_| end);
        }
    }
    answer
}

/// In messages of at most [`MAX_DATA`], with [`HEAD_OVERHEAD`] for each head.
fn heads(journal: &Journal, flow: FlowId) -> Vec<Response> {
    const PAGE_BYTES: usize = MAX_DATA / 2;
    let mut messages = Vec::new();
    let mut ranges = Vec::new();
    let mut size = 0;
    for (from, bytes) in journal.outstream_ranges(flow) {
        let mut from = from;
        for piece in bytes.chunks(PAGE_BYTES) {
            if size + piece.len() + HEAD_OVERHEAD > MAX_DATA {
                messages.push(Response::OutstreamHeads {
                    flow,
                    ranges: std::mem::take(&mut ranges),
                    last: false,
                });
                size = 0;
            }
            size += piece.len() + HEAD_OVERHEAD;
            ranges.push((from, piece.to_vec()));
            from += u32::try_from(piece.len()).unwrap_or(u32::MAX);
        }
    }
    messages.push(Response::OutstreamHeads {
        flow,
        ranges,
        last: true,
    });
    messages
}

/// In messages of at most [`MAX_DATA`].
fn beginnings(journal: &Journal, flow: FlowId) -> Vec<Response> {
    let places = journal.beginnings(flow);
    let places: Vec<_> = places.map(|at| (at.instream, at.outstream)).collect();
    let mut parts = places.chunks(MAX_DATA / PLACE_LEN).peekable();
    let mut messages = Vec::new();
    loop {
        let part = parts.next().unwrap_or_default();
        let last = parts.peek().is_none();
        messages.push(Response::Beginnings {
            flow,
            places: part.to_vec(),
            last,
        });
        if last {
            return messages;
        }
    }
}

fn digests(journal: &Journal, flow: FlowId) -> Vec<Response> {
    let digests: Vec<Digest> = journal.marks(flow).map(digest_of).collect();
    pages(&digests, MAX_DATA / DIGEST_LEN, |digests, last| {
        Response::Digests {
            flow,
            digests,
            last,
        }
    })
}

fn statistics(ingest: &Ingest) -> Statistics {
    let journal = ingest.journal.statistics();
    Statistics {
        flows: u64::try_from(journal.connections).unwrap_or(u64::MAX),
        unprotected_flows: u64::try_from(journal.unprotected).unwrap_or(u64::MAX),
        instream_bytes: journal.instream.recorded,
        outstream_bytes: journal.outstream.recorded,
        held: journal.held,
        frames: ingest.frames,
        malformed_frames: ingest.malformed,
        unknown_flow_frames: ingest.unknown,
    }
}

#[cfg(test)]
mod tests;
