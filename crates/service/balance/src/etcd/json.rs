//! Requests and answers of the JSON gateway, and the table as the value of the key.
//!
//! In the gateway's JSON, keys and values are base64, and numbers of 64 bits are strings.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use pool::Reply;
use protocol::pool::{BalancerId, Granter, MemberAddress, Table, TableKind, TableMember};
use serde::{Deserialize, Serialize};
use serde_json::json;

const FORMAT_VERSION: u32 = 1;

/// The value of the key.
#[derive(Debug, Serialize, Deserialize)]
struct StoredTable {
    version: u32,
    epoch: u64,
    hash: StoredKind,
    members: Vec<StoredMember>,
    balancers: Vec<StoredGranter>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredKind {
    Maglev,
    Mod,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredMember {
    name: String,
    membership: u64,
    address: IpAddr,
    claim_port: u16,
    draining: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredGranter {
    id: u64,
    settled: bool,
}

#[derive(Debug, Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Debug, Deserialize)]
struct KeyValue {
    mod_revision: String,
    value: String,
}

#[derive(Debug, Deserialize)]
struct Transaction {
    header: Header,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<ResponseOp>,
}

#[derive(Debug, Deserialize)]
struct Header {
    revision: String,
}

#[derive(Debug, Deserialize)]
struct ResponseOp {
    response_range: Option<Range>,
}

/// A request for the value.
pub(super) fn range(key: &str) -> String {
    json!({ "key": STANDARD.encode(key) }).to_string()
}

/// The table for programs and people.
pub(crate) fn table_json(table: &Table) -> String {
    serde_json::to_string(&StoredTable::of(table)).unwrap_or_default()
}

/// A request to write the table if the value has this revision.
pub(super) fn swap(key: &str, revision: u64, table: &Table) -> String {
    let key = STANDARD.encode(key);
    let stored = table_json(table);
    json!({
        "compare": [{
            "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string(),
        }],
        "success": [{ "request_put": { "key": key, "value": STANDARD.encode(stored) } }],
        "failure": [{ "request_range": { "key": key } }],
    })
    .to_string()
}

/// The answer to [`range`].
pub(super) fn value(answer: &str) -> Result<Reply, String> {
    let range = serde_json::from_str(answer).map_err(|error| unreadable(&error))?;
    value_of(range)
}

/// The answer to [`swap`].
pub(super) fn swapped(answer: &str) -> Result<Reply, String> {
    let answer: Transaction = serde_json::from_str(answer).map_err(|error| unreadable(&error))?;
    if answer.succeeded {
        return Ok(Reply::Swapped(number(&answer.header.revision)?));
    }
    let mut responses = answer.responses.into_iter();
    let range = responses.find_map(|response| response.response_range);
    value_of(range.unwrap_or(Range { kvs: Vec::new() }))
}

fn value_of(range: Range) -> Result<Reply, String> {
    let Some(pair) = range.kvs.into_iter().next() else {
        return Ok(Reply::Value(None));
    };
    let bytes = STANDARD
        .decode(pair.value)
        .map_err(|error| unreadable(&error))?;
    let stored: StoredTable = serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))?;
    let table = stored
        .table()
        .ok_or("the key has a table of another version")?;
    Ok(Reply::Value(Some((number(&pair.mod_revision)?, table))))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|error| unreadable(&error))
}

fn unreadable(error: &dyn std::fmt::Display) -> String {
    format!("an answer that is no table: {error}")
}

impl StoredTable {
    fn of(table: &Table) -> Self {
        let members = table.members.iter().map(|member| StoredMember {
            name: member.name.to_string(),
            membership: member.membership,
            address: member.address.ip(),
            claim_port: member.claim_port.get(),
            draining: member.draining,
        });
        let balancers = table.granters.iter().map(|granter| StoredGranter {
            id: granter.balancer.0,
            settled: granter.settled,
        });
        Self {
            version: FORMAT_VERSION,
            epoch: table.epoch,
            hash: match table.kind {
                TableKind::Maglev => StoredKind::Maglev,
                TableKind::Modulo => StoredKind::Mod,
            },
            members: members.collect(),
            balancers: balancers.collect(),
        }
    }

    fn table(self) -> Option<Table> {
        if self.version != FORMAT_VERSION {
            return None;
        }
        let members = self.members.into_iter().map(|member| {
            Some(TableMember {
                name: member.name.parse().ok()?,
                membership: member.membership,
                address: MemberAddress::new(member.address).ok()?,
                claim_port: member.claim_port.try_into().ok()?,
                draining: member.draining,
            })
        });
        let granters = self.balancers.into_iter().map(|granter| Granter {
            balancer: BalancerId(granter.id),
            settled: granter.settled,
        });
        Some(Table {
            epoch: self.epoch,
            kind: match self.hash {
                StoredKind::Maglev => TableKind::Maglev,
                StoredKind::Mod => TableKind::Modulo,
            },
            members: members.collect::<Option<_>>()?,
            granters: granters.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table {
            epoch: u64::MAX,
            kind: TableKind::Modulo,
            members: vec![TableMember {
                name: "web1".parse().expect("a name"),
                membership: u64::MAX - 1,
                address: MemberAddress::new([10, 0, 0, 11].into()).expect("a host"),
                claim_port: std::num::NonZeroU16::MAX,
                draining: true,
            }],
            granters: vec![Granter {
                balancer: BalancerId(u64::MAX - 2),
                settled: true,
            }],
        }
    }

    /// Answers of etcd 3.4.
    #[test]
    fn answers_are_read() {
        let none = r#"{"header":{"cluster_id":"1","revision":"7"}}"#;
        assert_eq!(value(none), Ok(Reply::Value(None)));
        let done =
            r#"{"header":{"revision":"8"},"succeeded":true,"responses":[{"response_put":{}}]}"#;
        assert_eq!(swapped(done), Ok(Reply::Swapped(8)));
        let absent =
            r#"{"header":{"revision":"8"},"responses":[{"response_range":{"header":{}}}]}"#;
        assert_eq!(swapped(absent), Ok(Reply::Value(None)));
    }

    #[test]
    fn table_survives_writing_and_reading() {
        let request: serde_json::Value =
            serde_json::from_str(&swap("k", 3, &table())).expect("JSON");
        let value = request["success"][0]["request_put"]["value"]
            .as_str()
            .expect("a value");
        let range = format!(r#"{{"kvs":[{{"key":"aw==","mod_revision":"9","value":"{value}"}}]}}"#);
        let answer = format!(
            r#"{{"header":{{"revision":"9"}},"responses":[{{"response_range":{range}}}]}}"#
        );
        let expected = Ok(Reply::Value(Some((9, table()))));
        assert_eq!(super::value(&range), expected);
        assert_eq!(swapped(&answer), expected);
        assert!(super::value(r#"{"kvs":[{"mod_revision":"9","value":"e30="}]}"#).is_err());
    }
}
