//! Versions of an object: the validators that tell whether two servers answer with the same bytes.

use alloc::string::String;

use crate::body::BodyLength;
use crate::head::{Doubt, ResponseHead};
use crate::range::ContentRange;

pub use types::VersionCheck;

/// The version of an object, as a response tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Length of the whole object, bytes; `None` if the response does not tell.
    pub complete_len: Option<u64>,
    /// The entity tag, with the mark of a weak tag.
    pub etag: Option<String>,
    /// `Last-Modified`, as sent.
    pub last_modified: Option<String>,
    /// `Content-Encoding`, as sent.
    pub content_encoding: Option<String>,
}

/// Why two responses are not of one version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionDifference {
    /// Different entity tags.
    #[error("ETag {recorded:?} before, {now:?} here")]
    Etag {
        /// Of the first response.
        recorded: Option<String>,
        /// Of the second response.
        now: Option<String>,
    },
    /// Different times of modification.
    #[error("Last-Modified {recorded:?} before, {now:?} here")]
    Modified {
        /// Of the first response.
        recorded: Option<String>,
        /// Of the second response.
        now: Option<String>,
    },
    /// Different lengths.
    #[error("length {recorded:?} before, {now:?} here")]
    Length {
        /// Of the first response, bytes.
        recorded: Option<u64>,
        /// Of the second response, bytes.
        now: Option<u64>,
    },
    /// Different content codings.
    #[error("Content-Encoding {recorded:?} before, {now:?} here")]
    Encoding {
        /// Of the first response.
        recorded: Option<String>,
        /// Of the second response.
        now: Option<String>,
    },
    /// Neither a strong entity tag nor a time of modification: nothing tells versions apart.
    #[error("the responses have no strong ETag and no Last-Modified")]
    NoValidator,
}

impl ObjectVersion {
    /// The version of a response with status 200 or 206.
    ///
    /// # Errors
    /// A validator occurs twice, or a range is malformed.
    pub fn of(response: &ResponseHead<'_>) -> Result<Self, Doubt> {
        let text = |name| Ok(response.fields.value(name)?.map(String::from));
        let content_range = response.fields.value("content-range")?;
        let complete_len = match (content_range, response.body) {
            (Some(range), _) if response.status == 206 => match ContentRange::parse(range) {
                Ok(ContentRange::Part { complete, .. }) => complete,
                _ => return Err(Doubt::Malformed),
            },
            (_, BodyLength::Bytes(len)) if response.status == 200 => Some(len),
            _ => None,
        };
        Ok(Self {
            complete_len,
            etag: text("etag")?,
            last_modified: text("last-modified")?,
            content_encoding: text("content-encoding")?,
        })
    }

    /// The entity tag, if the tag is strong (RFC 9110, 8.8.1): equal tags mean equal bytes.
    #[must_use]
    pub fn strong_etag(&self) -> Option<&str> {
        self.etag.as_deref().filter(|tag| tag.starts_with('"'))
    }

    /// Compares this version, which the client has a part of, with the version that a server has now.
    ///
    /// # Errors
    /// The versions differ, or nothing tells these apart.
    pub fn compare(&self, now: &Self, check: VersionCheck) -> Result<(), VersionDifference> {
        if check == VersionCheck::Off {
            return Ok(());
        }
        if self.complete_len.is_none() || self.complete_len != now.complete_len {
            let (recorded, now) = (self.complete_len, now.complete_len);
            return Err(VersionDifference::Length { recorded, now });
        }
        self.compare_validators(now, check)
    }

    /// The same, of responses that do not tell their lengths.
    ///
    /// # Errors
    /// As [`Self::compare`].
    pub fn compare_validators(
        &self,
        now: &Self,
        check: VersionCheck,
    ) -> Result<(), VersionDifference> {
        if check == VersionCheck::Off {
            return Ok(());
        }
        if self.content_encoding != now.content_encoding {
            let (recorded, now) = (self.content_encoding.clone(), now.content_encoding.clone());
            return Err(VersionDifference::Encoding { recorded, now });
        }
        match check {
            VersionCheck::Length | VersionCheck::Off => Ok(()),
            VersionCheck::Etag if self.strong_etag().or(now.strong_etag()).is_some() => {
                let are_equal = self.strong_etag() == now.strong_etag();
                let (recorded, now) = (self.etag.clone(), now.etag.clone());
                if are_equal {
                    Ok(())
                } else {
                    Err(VersionDifference::Etag { recorded, now })
                }
            }
            VersionCheck::Etag | VersionCheck::Modified => self.compare_modified(now),
        }
    }

    fn compare_modified(&self, now: &Self) -> Result<(), VersionDifference> {
        match (&self.last_modified, &now.last_modified) {
            (None, None) => Err(VersionDifference::NoValidator),
            (recorded, now) if recorded == now => Ok(()),
            (recorded, now) => Err(VersionDifference::Modified {
                recorded: recorded.clone(),
                now: now.clone(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::{Method, parse_response};

    fn version(status: u16, fields: &str) -> ObjectVersion {
        let text = std::format!("HTTP/1.1 {status} x\r\n{fields}\r\n");
        let head = parse_response(text.as_bytes(), Method::Get)
            .unwrap()
            .unwrap();
        ObjectVersion::of(&head).unwrap()
    }

    #[test]
    fn whole_and_part_of_one_version_are_equal() {
        let whole = version(200, "Content-Length: 100\r\nETag: \"a\"\r\n");
        let part = version(
            206,
            "Content-Length: 50\r\nContent-Range: bytes 50-99/100\r\nETag: \"a\"\r\n",
        );
        assert_eq!(whole.compare(&part, VersionCheck::Etag), Ok(()));
    }

    #[test]
    fn other_bytes_of_the_same_length_are_another_version() {
        let fields = "Content-Length: 100\r\nLast-Modified: Mon\r\n";
        let a = version(200, &std::format!("{fields}ETag: \"a\"\r\n"));
        let b = version(200, &std::format!("{fields}ETag: \"b\"\r\n"));
        assert!(matches!(
            a.compare(&b, VersionCheck::Etag),
            Err(VersionDifference::Etag { .. })
        ));
        assert_eq!(a.compare(&b, VersionCheck::Modified), Ok(()));
    }

    #[test]
    fn weak_tag_is_no_proof_of_equal_bytes() {
        let weak = version(200, "Content-Length: 100\r\nETag: W/\"a\"\r\n");
        assert_eq!(
            weak.compare(&weak, VersionCheck::Etag),
            Err(VersionDifference::NoValidator)
        );
        assert_eq!(weak.compare(&weak, VersionCheck::Length), Ok(()));
        let strong = version(200, "Content-Length: 100\r\nETag: \"a\"\r\n");
        assert!(strong.compare(&weak, VersionCheck::Etag).is_err());
    }

    #[test]
    fn unknown_or_other_length_is_another_version() {
        let chunked = version(200, "Transfer-Encoding: chunked\r\nETag: \"a\"\r\n");
        assert!(chunked.compare(&chunked, VersionCheck::Etag).is_err());
        assert_eq!(chunked.compare(&chunked, VersionCheck::Off), Ok(()));
        let short = version(200, "Content-Length: 99\r\nETag: \"a\"\r\n");
        let long = version(200, "Content-Length: 100\r\nETag: \"a\"\r\n");
        assert!(matches!(
            short.compare(&long, VersionCheck::Etag),
            Err(VersionDifference::Length { .. })
        ));
    }
}
