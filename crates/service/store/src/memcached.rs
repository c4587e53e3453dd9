//! memcached: one key for each record, and no index.
//!
//! | operation | commands |
//! |---|---|
//! | put | `ms` |
//! | get | `mg`, quiet, for each member, and `mn` |
//! | delete | `md` |
//! | renew | `mg` with a time to live |
//! | add a member | `ms` of an empty list that is not there, `ms` that appends |
//! | members | `mg`, quiet, of each list, and `mn` |
//! | probe | `version`, `stats`, `stats settings` |

use std::collections::BTreeMap;

use objects::record::{HashName, MemberHash, StoreKey};
use wire::FlowKey;

use crate::dialect::{Dialect, Progress, ProtocolError};
use crate::meta::{Command, Reply};
use crate::session::{lists_ttl, seconds};
use crate::{Failure, Operation, Outcome, Probe, Product, Settings, StoredValue};

/// A longer time to live would be a time since the Unix epoch.
const TTL_SECONDS_MAX: u64 = 30 * 24 * 3600;
/// Bits of an opaque token for the number of the hash.
const HASH_BITS: u32 = 16;

/// Protocol of memcached.
#[derive(Debug)]
pub(crate) struct Memcached {
    ttl: u64,
    /// Of a list of members.
    lists_ttl: u64,
}

/// What an operation waits for.
#[derive(Debug)]
pub(crate) enum Expected {
    Put {
        opaque: u64,
    },
    Get(LookUp),
    Delete {
        opaque: u64,
    },
    Renew {
        opaque: u64,
    },
    /// The list was there, or was made; the name was appended.
    AddMember {
        opaque: u64,
        is_list_there: bool,
    },
    Members {
        lists: u64,
        opaque: u64,
        members: Vec<MemberHash>,
        failure: Option<Failure>,
    },
    Probe {
        version: Option<String>,
        statistics: BTreeMap<String, String>,
        ends: usize,
    },
}

/// A look-up under way.
#[derive(Debug)]
pub(crate) struct LookUp {
    hashes: Vec<HashName>,
    flow: FlowKey,
    opaque: u64,
    values: Vec<StoredValue>,
    failure: Option<Failure>,
}

impl Memcached {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            ttl: seconds(settings.ttl).min(TTL_SECONDS_MAX),
            lists_ttl: lists_ttl(settings).min(TTL_SECONDS_MAX),
        }
    }
}

impl Dialect for Memcached {
    type Reply = Reply;
    type Expected = Expected;

    fn greet(&mut self, out: &mut Vec<u8>) -> Expected {
        probe(out)
    }

    fn request(
        &mut self,
        operation: &Operation,
        number: u64,
        out: &mut Vec<u8>,
    ) -> Result<Expected, Failure> {
        let opaque = number << HASH_BITS;
        Ok(match operation {
            Operation::Put { key, value } => {
                Command::Set {
                    key: &key.flat(),
                    value,
                    ttl: self.ttl,
                    opaque,
                }
                .encode(out);
                Expected::Put { opaque }
            }
            Operation::Get { hashes, flow } => {
                for (index, hash) in (0..1 << HASH_BITS).zip(hashes) {
                    let key = StoreKey::new(*hash, *flow).flat();
                    Command::GetQuietly {
                        key: &key,
                        opaque: opaque | index,
                    }
                    .encode(out);
                }
                Command::NoOp.encode(out);
                let (hashes, values) = (hashes.clone(), Vec::new());
                Expected::Get(LookUp {
                    hashes,
                    flow: *flow,
                    opaque,
                    values,
                    failure: None,
                })
            }
            Operation::Scan { .. } => return Err(Failure::Unsupported),
            Operation::Delete { key } => {
                Command::Delete {
                    key: &key.flat(),
                    opaque,
                }
                .encode(out);
                Expected::Delete { opaque }
            }
            Operation::Renew { key } => {
                Command::Touch {
                    key: &key.flat(),
                    ttl: self.ttl,
                    opaque,
                }
                .encode(out);
                Expected::Renew { opaque }
            }
            Operation::AddMember { list, member } => {
                let (key, value) = (list.to_string(), format!("{member} "));
                Command::Create {
                    key: &key,
                    ttl: self.lists_ttl,
                    opaque,
                }
                .encode(out);
                Command::Append {
                    key: &key,
                    value: value.as_bytes(),
                    opaque,
                }
                .encode(out);
                Expected::AddMember {
                    opaque,
                    is_list_there: false,
                }
            }
            Operation::Members { lists } => {
                let mut count = 0;
                for list in lists {
                    Command::GetQuietly {
                        key: &list.to_string(),
                        opaque: opaque | count,
                    }
                    .encode(out);
                    count += 1;
                }
                Command::NoOp.encode(out);
                Expected::Members {
                    lists: count,
                    opaque,
                    members: Vec::new(),
                    failure: None,
                }
            }
            Operation::Probe => probe(out),
        })
    }

    fn reply(input: &[u8]) -> Result<Option<(Reply, usize)>, ProtocolError> {
        Reply::decode(input)
    }

    fn accept(&mut self, expected: &mut Expected, reply: Reply) -> Result<Progress, ProtocolError> {
        const ERROR: ProtocolError = ProtocolError("a reply to another command");
        // After such an error the store may take a value for a command.
        if let Reply::ClientError(_) = reply {
            return Err(ProtocolError(
                "the store does not understand meta commands: memcached 1.6 or newer is needed",
            ));
        }
        Ok(Some(match (expected, reply) {
            (Expected::Get(look_up), reply) => return look_up.accept(reply),
            (
                Expected::Probe {
                    version,
                    statistics,
                    ends,
                },
                reply,
            ) => {
                match reply {
                    Reply::Version(text) => *version = Some(text),
                    Reply::Statistic { name, value } => drop(statistics.insert(name, value)),
                    Reply::End => *ends += 1,
                    Reply::ServerError(text) => return Ok(Some(Err(failure(text)))),
                    _ => return Err(ERROR),
                }
                return Ok((*ends == 2).then(|| Ok(probed(version.take(), statistics))));
            }
            (
                Expected::Members {
                    lists,
                    opaque,
                    members,
                    failure: failed,
                },
                reply,
            ) => match reply {
                Reply::Value {
                    opaque: Some(own),
                    value,
                } if own ^ *opaque < *lists => {
                    let text = String::from_utf8_lossy(&value);
                    members.extend(text.split(' ').filter_map(MemberHash::parse));
                    return Ok(None);
                }
                Reply::ServerError(text) => {
                    failed.get_or_insert(failure(text));
                    return Ok(None);
                }
                Reply::NoOp => {
                    members.sort_unstable();
                    members.dedup();
                    match failed.take() {
                        Some(failure) => Err(failure),
                        None => Ok(Outcome::Members(std::mem::take(members))),
                    }
                }
                _ => return Err(ERROR),
            },
            (
                Expected::AddMember {
                    opaque,
                    is_list_there,
                },
                reply,
            ) if !*is_list_there => {
                *is_list_there = true;
                return match reply {
                    Reply::Header { opaque: Some(own) }
                    | Reply::NotStored { opaque: Some(own) }
                        if own == *opaque =>
                    {
                        Ok(None)
                    }
                    // The reply to the second command tells of the failure, too.
                    Reply::ServerError(_) => Ok(None),
                    _ => Err(ERROR),
                };
            }
            (_, Reply::ServerError(text)) => Err(failure(text)),
            (Expected::AddMember { opaque, .. }, Reply::Header { opaque: Some(own) })
                if own == *opaque =>
            {
                Ok(Outcome::Stored)
            }
            // The list is gone a moment after it was made.
            (Expected::AddMember { opaque, .. }, Reply::NotStored { opaque: Some(own) })
                if own == *opaque =>
            {
                Err(Failure::Evicted)
            }
            (Expected::Put { opaque }, Reply::Header { opaque: Some(own) }) if own == *opaque => {
                Ok(Outcome::Stored)
            }
            (Expected::Put { opaque }, Reply::NotStored { opaque: Some(own) })
                if own == *opaque =>
            {
                Err(Failure::Other("NS".into()))
            }
            (Expected::Delete { opaque }, Reply::Header { opaque: Some(own) })
                if own == *opaque =>
            {
                Ok(Outcome::Deleted { existed: true })
            }
            (Expected::Delete { opaque }, Reply::NotFound { opaque: Some(own) })
                if own == *opaque =>
            {
                Ok(Outcome::Deleted { existed: false })
            }
            (Expected::Renew { opaque }, Reply::Header { opaque: Some(own) }) if own == *opaque => {
                Ok(Outcome::Renewed { exists: true })
            }
            (Expected::Renew { .. }, Reply::Miss) => Ok(Outcome::Renewed { exists: false }),
            _ => return Err(ERROR),
        }))
    }
}

impl LookUp {
    fn accept(&mut self, reply: Reply) -> Result<Progress, ProtocolError> {
        match reply {
            Reply::Value {
                opaque: Some(own),
                value,
            } => {
                let index = own ^ self.opaque;
                let hash = usize::try_from(index)
                    .ok()
                    .and_then(|index| self.hashes.get(index));
                let hash = *hash.ok_or(ProtocolError("a value of another look-up"))?;
                self.values.push(StoredValue {
                    key: StoreKey::new(hash, self.flow),
                    value,
                });
                Ok(None)
            }
            Reply::ServerError(text) => {
                self.failure.get_or_insert(failure(text));
                Ok(None)
            }
            Reply::NoOp => Ok(Some(match self.failure.take() {
                Some(failure) => Err(failure),
                None => Ok(Outcome::Found(std::mem::take(&mut self.values))),
            })),
            _ => Err(ProtocolError("a reply to another command")),
        }
    }
}

fn probe(out: &mut Vec<u8>) -> Expected {
    Command::Version.encode(out);
    Command::Statistics { group: "" }.encode(out);
    Command::Statistics { group: "settings" }.encode(out);
    Expected::Probe {
        version: None,
        statistics: BTreeMap::new(),
        ends: 0,
    }
}

fn probed(version: Option<String>, statistics: &BTreeMap<String, String>) -> Outcome {
    let number = |name: &str| {
        statistics
            .get(name)
            .and_then(|value| value.parse::<u64>().ok())
    };
    // The process and the second in which it began.
    let began = number("time")
        .zip(number("uptime"))
        .and_then(|(now, age)| now.checked_sub(age));
    let instance = number("pid")
        .zip(began)
        .map(|(pid, began)| format!("{pid}.{began}"));
    Outcome::Probed(Probe {
        product: Product::Memcached,
        version,
        instance,
        eviction: statistics
            .get("evictions")
            .filter(|value| number_free(value))
            .cloned(),
        memory_limit: number("maxbytes"),
        round_trip: std::time::Duration::ZERO,
    })
}

/// `stats` has a count of the same name as the setting `evictions`.
fn number_free(value: &str) -> bool {
    value.parse::<u64>().is_err()
}

fn failure(text: String) -> Failure {
    if text.starts_with("out of memory") {
        Failure::OutOfMemory(text)
    } else if text.contains("too large") {
        Failure::TooLarge(text)
    } else {
        Failure::Other(text)
    }
}

#[cfg(test)]
mod tests {
    use objects::PoolKey;
    use objects::record::MemberHash;

    use super::*;

    fn look_up() -> (Memcached, Expected) {
        let flow = FlowKey::new(([10, 0, 0, 1], 1).into(), ([10, 0, 0, 10], 80).into());
        let hash = |member| HashName::new(flow.server(), MemberHash::of(member, &PoolKey([1; 16])));
        let operation = Operation::Get {
            hashes: vec![hash("web1"), hash("web2")],
            flow,
        };
        let mut dialect = Memcached::new(&Settings::default());
        let expected = dialect
            .request(&operation, 7, &mut Vec::new())
            .expect("a look-up");
        (dialect, expected)
    }

    fn value(opaque: u64) -> Reply {
        Reply::Value {
            opaque: Some(opaque),
            value: b"x".to_vec(),
        }
    }

    #[test]
    fn error_in_a_look_up_is_not_a_missing_record() {
        let (mut dialect, mut expected) = look_up();
        let error = Reply::ServerError("x".to_owned());
        assert_eq!(dialect.accept(&mut expected, error), Ok(None));
        assert_eq!(
            dialect.accept(&mut expected, value(7 << HASH_BITS | 1)),
            Ok(None)
        );
        let over = dialect.accept(&mut expected, Reply::NoOp);
        assert_eq!(over, Ok(Some(Err(Failure::Other("x".to_owned())))));
    }

    #[test]
    fn value_of_another_look_up_ends_the_connection() {
        for opaque in [6 << HASH_BITS, 7 << HASH_BITS | 2, 0] {
            let (mut dialect, mut expected) = look_up();
            assert!(
                dialect.accept(&mut expected, value(opaque)).is_err(),
                "{opaque}"
            );
        }
        let (mut dialect, mut expected) = look_up();
        assert!(
            dialect
                .accept(&mut expected, Reply::Header { opaque: None })
                .is_err()
        );
    }

    #[test]
    fn confirmation_of_another_put_ends_the_connection() {
        let mut dialect = Memcached::new(&Settings::default());
        let confirmed = |dialect: &mut Memcached, opaque| {
            dialect.accept(&mut Expected::Put { opaque: 7 }, Reply::Header { opaque })
        };
        assert_eq!(
            confirmed(&mut dialect, Some(7)),
            Ok(Some(Ok(Outcome::Stored)))
        );
        assert!(confirmed(&mut dialect, Some(8)).is_err());
        assert!(confirmed(&mut dialect, None).is_err());
        let not_stored = Reply::NotStored { opaque: Some(7) };
        let refused = dialect.accept(&mut Expected::Put { opaque: 7 }, not_stored);
        assert!(matches!(refused, Ok(Some(Err(Failure::Other(_))))));
    }
}
