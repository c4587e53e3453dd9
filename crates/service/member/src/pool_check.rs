//! `outlive check --pool`: whether the members of a pool could go on with each other's downloads.
//!
//! The balancer lists the members; each member answers for its host and its own server (`probe`). The
//! judgement is that of a revival: versions are compared as in the crate `http1`.

use std::{
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use channel::{Channel, KeyRing};
use http1::version::{ObjectVersion, VersionCheck, VersionDifference};
use serde::Serialize;
use types::JSON_VERSION;

use crate::{
    error::MemberError,
    pool_client::pool_of,
    probe::{self, Answer, Head, Question, Response},
};

/// Time for a connection to a member, and for its answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The port of HTTP over TLS.
const HTTPS_PORT: u16 = 443;

/// Options of a check.
#[derive(Debug, Clone)]
pub struct PoolCheck {
    /// Where the balancer listens for members.
    pub balancer: SocketAddr,
    /// The keys of the pool.
    pub key_file: PathBuf,
    /// Request targets of objects.
    pub targets: Vec<String>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject of the question.
    pub question: String,
    /// Does the condition hold?
    pub ok: bool,
    /// The finding; of a condition that does not hold, also the remedy.
    pub answer: String,
    /// The condition does not hold, and only some downloads suffer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub warning: bool,
    /// For a condition that does not hold: the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The version of the schema.
    pub version: u32,
}

impl Finding {
    fn good(question: impl Into<String>, answer: impl Into<String>) -> Self {
        Self {
            question: question.into(),
            ok: true,
            answer: answer.into(),
            warning: false,
            code: None,
            version: JSON_VERSION,
        }
    }

    fn bad(question: impl Into<String>, code: &'static str, answer: impl Into<String>) -> Self {
        Self {
            ok: false,
            code: Some(code),
            ..Self::good(question, answer)
        }
    }

    fn into_warning(self) -> Self {
        Self {
            warning: true,
            ..self
        }
    }
}

/// Asks balancer and members.
///
/// # Errors
/// The key file cannot be read, or the balancer does not answer.
pub fn check(check: &PoolCheck) -> Result<Vec<Finding>, MemberError> {
    let keys = KeyRing::load(&check.key_file).map_err(MemberError::KeyFile)?;
    let (config, table) = pool_of(check.balancer, &keys)?;
    let mut findings = Vec::new();
    let names = table.members.iter().map(|member| member.name.to_string());
    let names = names.collect::<Vec<_>>();
    let subject = format!("balancer {}", check.balancer);
    findings.push(match names.len() {
        0 => Finding::bad(
            subject,
            "no_members",
            "the pool has no members: start `outlive objects`",
        ),
        1 => Finding::bad(
            subject,
            "one_member",
            format!(
                "{} is the only member: no member would go on with its downloads",
                names[0]
            ),
        )
        .into_warning(),
        _ => Finding::good(subject, format!("members: {}", names.join(", "))),
    });
    findings.extend(https(&config.addresses));
    let mut answers = Vec::new();
    for member in &table.members {
        let name = member.name.to_string();
        let at = SocketAddr::new(member.address.ip(), member.claim_port.get());
        let answer = ask(at, &keys, &check.targets);
        findings.push(of_host(&name, &answer));
        answers.push((name, answer));
    }
    for (index, target) in check.targets.iter().enumerate() {
        let responses = answers.iter().filter_map(|(name, answer)| {
            let response = answer.as_ref().ok()?.responses.get(index)?;
            Some((name.as_str(), response))
        });
        let responses: Vec<(&str, &Response)> = responses.collect();
        findings.push(of_object(
            target,
            &responses,
            names.len(),
            config.version_check,
        ));
    }
    Ok(findings)
}

fn https(addresses: &[SocketAddr]) -> Option<Finding> {
    let address = addresses
        .iter()
        .find(|address| address.port() == HTTPS_PORT)?;
    let answer = "TLS is not protected here: put TLS in front of the pool, or use `outlive serve --stateful`";
    Some(Finding::bad(address.to_string(), "tls", answer).into_warning())
}

fn ask(at: SocketAddr, keys: &KeyRing, targets: &[String]) -> Result<Answer, String> {
    let words = |error: &dyn std::fmt::Display| format!("no answer from {at}: {error}");
    let channel = Channel::connect(at, keys.first(), CONNECT_TIMEOUT, ANSWER_TIMEOUT);
    let mut channel = channel.map_err(|error| words(&error))?;
    let targets = targets.to_vec();
    probe::send(&mut channel, &Question { targets }).map_err(|error| words(&error))?;
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    probe::receive(&mut channel, deadline).map_err(|error| words(&error))
}

fn of_host(name: &str, answer: &Result<Answer, String>) -> Finding {
    let answer = match answer {
        Ok(answer) => answer,
        Err(reason) => return Finding::bad(name, "member_does_not_answer", reason.as_str()),
    };
    if !answer.addresses_elsewhere.is_empty() {
        let addresses = answer.addresses_elsewhere.join(", ");
        let words = format!(
            "the host has {addresses}: take the address away, members bring it up on lo by themselves"
        );
        return Finding::bad(name, "address_elsewhere", words);
    }
    let settings = [
        (answer.has_timestamps, "tcp_timestamps"),
        (answer.has_sack, "tcp_sack"),
    ];
    if let Some((_, setting)) = settings.into_iter().find(|(is_on, _)| !is_on) {
        let words = format!("no connection is protected: sysctl -w net.ipv4.{setting}=1");
        return Finding::bad(name, "tcp_setting", words);
    }
    Finding::good(
        name,
        "the programs run; the address is on lo alone; TCP has timestamps and SACK",
    )
}

fn version_of(head: &Head) -> ObjectVersion {
    ObjectVersion {
        complete_len: head.complete_len,
        etag: head.etag.clone(),
        last_modified: head.last_modified.clone(),
        content_encoding: None,
    }
}

/// Whether the members agree about an object, and could continue its downloads.
fn of_object(
    target: &str,
    responses: &[(&str, &Response)],
    members: usize,
    check: VersionCheck,
) -> Finding {
    let mut heads: Vec<(&str, &Head)> = Vec::new();
    for (name, response) in responses {
        match response {
            Response::Head(head) if matches!(head.status, 200 | 206) => heads.push((name, head)),
            Response::Head(head) => {
                let words = format!("status {} on {name}: no download to protect", head.status);
                return Finding::bad(target, "status", words);
            }
            Response::Failed(reason) => {
                let words = format!("the server of {name} does not answer: {reason}");
                return Finding::bad(target, "server", words);
            }
        }
    }
    let Some(((name, first), rest)) = heads.split_first() else {
        return Finding::bad(target, "no_members", "no member has answered");
    };
    if let Some((name, _)) = heads.iter().find(|(_, head)| head.is_chunked) {
        let words = format!(
            "chunked on {name}: not protected; serve a file, switch compression off, or see --deterministic-chunks"
        );
        return Finding::bad(target, "chunked", words).into_warning();
    }
    for (other, head) in rest {
        let (a, b) = (version_of(first), version_of(head));
        if let Err(difference) = a.compare(&b, check) {
            let words = differs((name, &a), (other, &b), &difference);
            return Finding::bad(target, code(&difference), words);
        }
    }
    if let Err(difference) = version_of(first).compare(&version_of(first), check) {
        let words = "no strong ETag and no Last-Modified: no other member can go on; give the file a type, or use \
                     `outlive balance --version-check length`";
        return Finding::bad(target, code(&difference), words);
    }
    of_equal_object(target, &heads, members)
}

fn of_equal_object(target: &str, heads: &[(&str, &Head)], members: usize) -> Finding {
    if let Some((name, _)) = heads.iter().find(|(_, head)| head.is_compressed_on_the_fly) {
        let words = format!(
            "compressed on the fly on {name}: not protected for a client that accepts gzip; compress beforehand (nginx: \
             gzip_static), or switch compression off"
        );
        return Finding::bad(target, "gzip", words).into_warning();
    }
    if let Some((name, _)) = heads.iter().find(|(_, head)| head.status == 200) {
        let words = format!(
            "{name} ignores ranges: a member reads and throws away all bytes before the client's (--discard-limit)"
        );
        return Finding::bad(target, "no_ranges", words).into_warning();
    }
    let etag = match heads.first().and_then(|(_, head)| head.etag.as_deref()) {
        Some(etag) if etag.starts_with('"') => "strong ETag",
        Some(_) => "weak ETag, compared by Last-Modified",
        None => "no ETag, compared by Last-Modified",
    };
    let agreeing = heads.len();
    Finding::good(
        target,
        format!("206, {etag}, {agreeing} of {members} members agree"),
    )
}

const fn code(difference: &VersionDifference) -> &'static str {
    match difference {
        VersionDifference::Etag { .. } => "etag",
        VersionDifference::Modified { .. } => "last_modified",
        VersionDifference::Length { .. } => "length",
        VersionDifference::Encoding { .. } => "encoding",
        VersionDifference::NoValidator => "no_validator",
    }
}

/// The difference in words, with the way to mend it.
fn differs(
    (name, first): (&str, &ObjectVersion),
    (other, second): (&str, &ObjectVersion),
    difference: &VersionDifference,
) -> String {
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let len = |version: &ObjectVersion| {
        let len = version.complete_len.map(|len| len.to_string());
        len.unwrap_or_else(|| "unknown".to_owned())
    };
    let (subject, a, b) = match difference {
        VersionDifference::Etag { .. } => ("ETag", shown(&first.etag), shown(&second.etag)),
        VersionDifference::Length { .. } => ("length", len(first), len(second)),
        _ => (
            "Last-Modified",
            shown(&first.last_modified),
            shown(&second.last_modified),
        ),
    };
    let remedy = if first.complete_len != second.complete_len {
        "other bytes: copy the file with rsync -t"
    } else if first.last_modified != second.last_modified {
        "same size, other time of modification: copy with rsync -t"
    } else {
        "same size and time: the servers make ETags in different ways; use `outlive balance --version-check modified`, or \
         for lighttpd etag.use-inode = \"disable\""
    };
    format!("{subject} differs: {a} on {name}, {b} on {other}; {remedy}")
}

#[cfg(test)]
mod tests;
