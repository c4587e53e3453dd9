//! Valkey and Redis.
//!
//! | operation | commands |
//! |---|---|
//! | put | `HSET`, `EXPIRE` |
//! | get | `HGET` in each hash |
//! | scan | `HSCAN` |
//! | delete | `HDEL` |
//! | renew | `EXPIRE` |
//! | add a member | `SADD`, `EXPIRE` |
//! | members | `SMEMBERS` of each list |
//! | probe | `PING`, `INFO server`, `INFO memory` |
//!
//! Each member has a hash: records and index in one. The hash lives as long as the member writes or renews.
//!
//! A connection begins with `AUTH` and `SELECT`, if the URL has a login, and with a probe. The connection before may
//! have ended on this side alone: then the store still has commands of that connection, and would perform the commands
//! behind newer commands. `CLIENT KILL` ends that connection first.

use redis_protocol::resp2::types::OwnedFrame;

use objects::record::{HashName, MemberHash, StoreKey};
use wire::FlowKey;

use crate::dialect::{Dialect, Progress, ProtocolError};
use crate::resp::{command, frame};
use crate::session::{lists_ttl, seconds};
use crate::url::Login;
use crate::{Cursor, Failure, Operation, Outcome, Page, Probe, Product, Settings, StoredValue};

/// Records of a page: a hint for the store.
const PAGE_RECORDS: &[u8] = b"64";
/// Longest text of an error that is kept, characters.
const ERROR_LEN_MAX: usize = 200;

/// Protocol of Valkey and Redis.
#[derive(Debug)]
pub(crate) struct Valkey {
    login: Login,
    /// Time to live of a hash, seconds.
    ttl: String,
    /// The same of a list of members.
    lists_ttl: String,
    /// The newest connection on which operations were sent, as the store names the connection.
    client: Option<Client>,
}

#[derive(Debug)]
struct Client {
    id: String,
    address: String,
}

/// What an operation waits for.
#[derive(Debug)]
pub(crate) enum Expected {
    Put(Vec<Reply>),
    Get {
        hashes: Vec<HashName>,
        flow: FlowKey,
        replies: Vec<Reply>,
    },
    Scan(HashName),
    Delete,
    Renew,
    Members {
        lists: usize,
        replies: Vec<Reply>,
    },
    /// Errors of login commands are fatal, those of `CLIENT` are not.
    Probe {
        login: usize,
        client: usize,
        replies: Vec<Reply>,
    },
}

type Reply = Result<OwnedFrame, Failure>;

impl Valkey {
    pub(crate) fn new(login: Login, settings: &Settings) -> Self {
        Self {
            login,
            ttl: seconds(settings.ttl).to_string(),
            lists_ttl: lists_ttl(settings).to_string(),
            client: None,
        }
    }
}

impl Dialect for Valkey {
    type Reply = OwnedFrame;
    type Expected = Expected;

    fn greet(&mut self, out: &mut Vec<u8>) -> Expected {
        let mut login = 0;
        if let Some(password) = &self.login.password {
            let user = self.login.user.as_deref();
            let parts = [Some("AUTH"), user, Some(password)];
            command(
                &parts
                    .iter()
                    .flatten()
                    .map(|part| part.as_bytes())
                    .collect::<Vec<_>>(),
                out,
            );
            login += 1;
        }
        if self.login.database != 0 {
            command(
                &[b"SELECT", self.login.database.to_string().as_bytes()],
                out,
            );
            login += 1;
        }
        let mut client = 1;
        if let Some(before) = &self.client {
            // Both filters: another instance of the store may have given the number to another member.
            let (id, address) = (before.id.as_bytes(), before.address.as_bytes());
            command(&[b"CLIENT", b"KILL", b"ID", id, b"ADDR", address], out);
            client += 1;
        }
        command(&[b"CLIENT", b"INFO"], out);
        probe(out);
        Expected::Probe {
            login,
            client,
            replies: Vec::new(),
        }
    }

    fn request(
        &mut self,
        operation: &Operation,
        _number: u64,
        out: &mut Vec<u8>,
    ) -> Result<Expected, Failure> {
        Ok(match operation {
            Operation::Put { key, value } => {
                let hash = key.hash.to_string();
                command(
                    &[b"HSET", hash.as_bytes(), key.field().as_bytes(), value],
                    out,
                );
                command(&[b"EXPIRE", hash.as_bytes(), self.ttl.as_bytes()], out);
                Expected::Put(Vec::new())
            }
            Operation::Get { hashes, flow } => {
                for hash in hashes {
                    let field = StoreKey::new(*hash, *flow).field();
                    command(
                        &[b"HGET", hash.to_string().as_bytes(), field.as_bytes()],
                        out,
                    );
                }
                Expected::Get {
                    hashes: hashes.clone(),
                    flow: *flow,
                    replies: Vec::new(),
                }
            }
            Operation::Scan { hash, cursor } => {
                let (name, cursor) = (hash.to_string(), cursor.0.to_string());
                command(
                    &[
                        b"HSCAN",
                        name.as_bytes(),
                        cursor.as_bytes(),
                        b"COUNT",
                        PAGE_RECORDS,
                    ],
                    out,
                );
                Expected::Scan(*hash)
            }
            Operation::Delete { key } => {
                command(
                    &[
                        b"HDEL",
                        key.hash.to_string().as_bytes(),
                        key.field().as_bytes(),
                    ],
                    out,
                );
                Expected::Delete
            }
            Operation::Renew { key } => {
                command(
                    &[
                        b"EXPIRE",
                        key.hash.to_string().as_bytes(),
                        self.ttl.as_bytes(),
                    ],
                    out,
                );
                Expected::Renew
            }
            Operation::AddMember { list, member } => {
                let (list, member) = (list.to_string(), member.to_string());
                command(&[b"SADD", list.as_bytes(), member.as_bytes()], out);
                command(
                    &[b"EXPIRE", list.as_bytes(), self.lists_ttl.as_bytes()],
                    out,
                );
                Expected::Put(Vec::new())
            }
            Operation::Members { lists } => {
                for list in lists {
                    command(&[b"SMEMBERS", list.to_string().as_bytes()], out);
                }
                Expected::Members {
                    lists: lists.len(),
                    replies: Vec::new(),
                }
            }
            Operation::Probe => {
                probe(out);
                Expected::Probe {
                    login: 0,
                    client: 0,
                    replies: Vec::new(),
                }
            }
        })
    }

    fn reply(input: &[u8]) -> Result<Option<(OwnedFrame, usize)>, ProtocolError> {
        frame(input)
    }

    fn accept(
        &mut self,
        expected: &mut Expected,
        reply: OwnedFrame,
    ) -> Result<Progress, ProtocolError> {
        let reply = match reply {
            OwnedFrame::Error(text) => Err(failure(&text)),
            reply => Ok(reply),
        };
        match expected {
            Expected::Put(replies) => {
                replies.push(reply);
                (replies.len() == 2)
                    .then(|| stored(std::mem::take(replies)))
                    .transpose()
            }
            Expected::Get {
                hashes,
                flow,
                replies,
            } => {
                replies.push(reply);
                let are_all = replies.len() == hashes.len();
                are_all
                    .then(|| found(hashes, *flow, std::mem::take(replies)))
                    .transpose()
            }
            Expected::Members { lists, replies } => {
                replies.push(reply);
                (replies.len() == *lists)
                    .then(|| members(std::mem::take(replies)))
                    .transpose()
            }
            Expected::Scan(hash) => over(reply, |frame| page(*hash, frame)),
            Expected::Delete => over(reply, |frame| {
                Ok(Outcome::Deleted {
                    existed: integer(&frame)? > 0,
                })
            }),
            Expected::Renew => over(reply, |frame| {
                Ok(Outcome::Renewed {
                    exists: integer(&frame)? > 0,
                })
            }),
            Expected::Probe {
                login,
                client,
                replies,
            } => {
                replies.push(reply);
                if replies.len() < *login + *client + 3 {
                    return Ok(None);
                }
                let mut about = replies.split_off(*login + *client);
                if let Some(Ok(info)) = replies
                    .get((*login + *client).wrapping_sub(1))
                    .filter(|_| *client > 0)
                {
                    self.client = client_of(info);
                }
                about.extend(replies.drain(..*login).filter(Result::is_err));
                Ok(Some(probed(about)))
            }
        }
    }
}

fn probe(out: &mut Vec<u8>) {
    command(&[b"PING"], out);
    command(&[b"INFO", b"server"], out);
    command(&[b"INFO", b"memory"], out);
}

fn over(
    reply: Reply,
    outcome: impl FnOnce(OwnedFrame) -> Result<Outcome, ProtocolError>,
) -> Result<Progress, ProtocolError> {
    Ok(Some(match reply {
        Ok(frame) => Ok(outcome(frame)?),
        Err(failure) => Err(failure),
    }))
}

/// The first failure of replies, or the replies.
fn successes(replies: Vec<Reply>) -> Result<Vec<OwnedFrame>, Failure> {
    replies.into_iter().collect()
}

fn stored(replies: Vec<Reply>) -> Result<Result<Outcome, Failure>, ProtocolError> {
    let frames = match successes(replies) {
        Ok(frames) => frames,
        Err(failure) => return Ok(Err(failure)),
    };
    let numbers: Result<Vec<i64>, _> = frames.iter().map(integer).collect();
    Ok(match numbers?[..] {
        // The hash is gone a moment after the write.
        [_, 0] => Err(Failure::Evicted),
        _ => Ok(Outcome::Stored),
    })
}

fn found(
    hashes: &[HashName],
    flow: FlowKey,
    replies: Vec<Reply>,
) -> Result<Result<Outcome, Failure>, ProtocolError> {
    let frames = match successes(replies) {
        Ok(frames) => frames,
        Err(failure) => return Ok(Err(failure)),
    };
    let mut values = Vec::new();
    for (hash, frame) in hashes.iter().zip(frames) {
        match frame {
            OwnedFrame::Null => {}
            OwnedFrame::BulkString(value) => values.push(StoredValue {
                key: StoreKey::new(*hash, flow),
                value,
            }),
            _ => return Err(ProtocolError("the reply to HGET is no value")),
        }
    }
    Ok(Ok(Outcome::Found(values)))
}

/// Names that no member has written are ignored.
fn members(replies: Vec<Reply>) -> Result<Result<Outcome, Failure>, ProtocolError> {
    const ERROR: ProtocolError = ProtocolError("the reply to SMEMBERS is no list");
    let frames = match successes(replies) {
        Ok(frames) => frames,
        Err(failure) => return Ok(Err(failure)),
    };
    let mut members = Vec::new();
    for frame in frames {
        let OwnedFrame::Array(names) = frame else {
            return Err(ERROR);
        };
        members.extend(names.iter().filter_map(text).filter_map(MemberHash::parse));
    }
    members.sort_unstable();
    members.dedup();
    Ok(Ok(Outcome::Members(members)))
}

fn page(hash: HashName, frame: OwnedFrame) -> Result<Outcome, ProtocolError> {
    const ERROR: ProtocolError = ProtocolError("the reply to HSCAN is no page");
    let OwnedFrame::Array(parts) = frame else {
        return Err(ERROR);
    };
    let Ok([cursor, OwnedFrame::Array(entries)]) = <[OwnedFrame; 2]>::try_from(parts) else {
        return Err(ERROR);
    };
    let cursor = text(&cursor)
        .and_then(|text| text.parse().ok())
        .ok_or(ERROR)?;
    let mut page = Page {
        values: Vec::new(),
        foreign: 0,
        next: Some(Cursor(cursor)).filter(|next| next.0 != 0),
    };
    let mut entries = entries.into_iter();
    while let Some(field) = entries.next() {
        let (OwnedFrame::BulkString(field), Some(OwnedFrame::BulkString(value))) =
            (field, entries.next())
        else {
            return Err(ERROR);
        };
        match std::str::from_utf8(&field).ok().and_then(StoreKey::flow_of) {
            Some(flow) => page.values.push(StoredValue {
                key: StoreKey::new(hash, flow),
                value,
            }),
            None => page.foreign += 1,
        }
    }
    Ok(Outcome::Page(page))
}

/// From `PING`, two `INFO`, and errors of the login.
fn probed(replies: Vec<Reply>) -> Result<Outcome, Failure> {
    let mut replies = replies.into_iter();
    let (pong, server, memory) = (replies.next(), replies.next(), replies.next());
    replies
        .find_map(Result::err)
        .map_or(Ok(()), |login| match login {
            Failure::Other(text) => Err(Failure::Denied(text)),
            failure => Err(failure),
        })?;
    pong.transpose()?;
    // A user may have no right to INFO: the store can be used all the same.
    let info = |reply: Option<Reply>| match reply {
        Some(Ok(frame)) => text(&frame).unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    let (server, memory) = (info(server), info(memory));
    let valkey = value_of(&server, "valkey_version");
    let limit = value_of(&memory, "maxmemory").and_then(|limit| limit.parse().ok());
    Ok(Outcome::Probed(Probe {
        product: if valkey.is_some() {
            Product::Valkey
        } else {
            Product::Redis
        },
        version: valkey.or(value_of(&server, "redis_version")),
        instance: value_of(&server, "run_id"),
        eviction: value_of(&memory, "maxmemory_policy"),
        memory_limit: limit.filter(|limit| *limit != 0),
        round_trip: std::time::Duration::ZERO,
    }))
}

/// A line `name:value` of `INFO`.
fn value_of(info: &str, name: &str) -> Option<String> {
    let mut lines = info.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.to_owned())
}

/// Words `name=value` of `CLIENT INFO`.
fn client_of(info: &OwnedFrame) -> Option<Client> {
    let words = text(info)?
        .split_ascii_whitespace()
        .filter_map(|word| word.split_once('='));
    let value = |name| {
        words
            .clone()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
    };
    Some(Client {
        id: value("id")?,
        address: value("addr")?,
    })
}

fn text(frame: &OwnedFrame) -> Option<&str> {
    match frame {
        OwnedFrame::BulkString(bytes) | OwnedFrame::SimpleString(bytes) => {
            std::str::from_utf8(bytes).ok()
        }
        _ => None,
    }
}

fn integer(frame: &OwnedFrame) -> Result<i64, ProtocolError> {
    match frame {
        OwnedFrame::Integer(number) => Ok(*number),
        _ => Err(ProtocolError("the reply is no number")),
    }
}

/// The meaning of an error: the first word is the code.
fn failure(text: &str) -> Failure {
    let kept: String = text.chars().take(ERROR_LEN_MAX).collect();
    match text.split(' ').next().unwrap_or_default() {
        "OOM" => Failure::OutOfMemory(kept),
        "READONLY" | "MISCONF" | "NOREPLICAS" => Failure::ReadOnly(kept),
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => Failure::Denied(kept),
        "WRONGTYPE" => Failure::WrongType(kept),
        "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" => Failure::Busy(kept),
        _ => Failure::Other(kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(expected: &mut Expected, frames: &[OwnedFrame]) -> Result<Progress, ProtocolError> {
        let mut dialect = Valkey::new(Login::default(), &Settings::default());
        let mut progress = Ok(None);
        for frame in frames {
            assert_eq!(progress, Ok(None));
            progress = dialect.accept(expected, frame.clone());
        }
        progress
    }

    #[test]
    fn put_whose_hash_is_gone_is_evicted() {
        let put = |replies: [i64; 2]| {
            accepted(
                &mut Expected::Put(Vec::new()),
                &replies.map(OwnedFrame::Integer),
            )
        };
        assert_eq!(put([1, 1]), Ok(Some(Ok(Outcome::Stored))));
        assert_eq!(
            put([0, 1]),
            Ok(Some(Ok(Outcome::Stored))),
            "an older record was replaced"
        );
        assert_eq!(put([1, 0]), Ok(Some(Err(Failure::Evicted))));
    }

    #[test]
    fn put_with_one_error_is_not_confirmed() {
        let error = OwnedFrame::Error("ERR x".to_owned());
        let number = OwnedFrame::Integer(1);
        for replies in [[error.clone(), number.clone()], [number, error]] {
            let result = accepted(&mut Expected::Put(Vec::new()), &replies);
            assert_eq!(result, Ok(Some(Err(Failure::Other("ERR x".to_owned())))));
        }
    }

    #[test]
    fn reply_of_another_kind_ends_the_connection() {
        let text = OwnedFrame::SimpleString(b"OK".to_vec());
        assert!(
            accepted(
                &mut Expected::Put(Vec::new()),
                &[text.clone(), text.clone()]
            )
            .is_err()
        );
        assert!(accepted(&mut Expected::Delete, &[text]).is_err());
        assert!(accepted(&mut Expected::Renew, &[OwnedFrame::Null]).is_err());
    }
}
