//! Heads of common and of rare parts, whole and damaged.

use proptest::prelude::*;
use proptest::sample::{Index, select};

const START_LINES: [&str; 22] = [
    "GET / HTTP/1.1",
    "GET /a?b=c%20d HTTP/1.0",
    "HEAD /a HTTP/1.1",
    "HEADER /a HTTP/1.1",
    "get / HTTP/1.1",
    "XGET / HTTP/1.1",
    "AHEAD / HTTP/1.1",
    "POST /b HTTP/1.1",
    "CONNECT a:443 HTTP/1.1",
    "GET /",
    "GET / HTTP/1.2",
    "PRI * HTTP/2.0",
    "HTTP/1.1 200 OK",
    "HTTP/1.1 200 OK",
    "HTTP/1.0 200 OK",
    "HTTP/1.1 206 Partial Content",
    "HTTP/1.1 206 ",
    "HTTP/1.1 200",
    "HTTP/1.1 204 No Content",
    "HTTP/1.1 304 Not Modified",
    "HTTP/1.1 100 Continue",
    "HTTP/1.1 416 \u{e9}t\u{e9}",
];

const NAMES: [&str; 26] = [
    "Content-Length",
    "Transfer-Encoding",
    "Connection",
    "Range",
    "Content-Range",
    "Content-Type",
    "Content-Encoding",
    "ETag",
    "Last-Modified",
    "Authorization",
    "Cookie",
    "Upgrade",
    "Expect",
    "Host",
    "Date",
    "Server",
    "Content-Lengt",
    "Content-Lengthy",
    "Content_Length",
    "xContent-Length",
    "Transfer-Encodinf",
    "Accept-Ranges",
    "ETags",
    "Set-Cookie",
    "Access-Control-Allow-Credentials",
    "X",
];

const VALUES: [&str; 34] = [
    "0",
    "12",
    "+12",
    "0012",
    "1 2",
    "12, 12",
    "18446744073709551615",
    "18446744073709551616",
    "9999999999999999999",
    "0000000000000000000000012",
    "chunked",
    "Chunked",
    "gzip, chunked",
    "gzip",
    "close",
    "Keep-Alive",
    "TE, Close",
    "clo se, closed",
    "x close",
    "bytes=1-5",
    "bytes=0-1,3-4",
    "bytes 1-5/9",
    "BYTES 1-5/*",
    "bytes */9",
    "bytes 5-1/9",
    "bytes 1-9/9",
    "bytes  1-5/9",
    "multipart/byteranges; boundary=a",
    "text/html",
    "\"a\"",
    "W/\"a\"",
    "Mon, 02 Jan 2006 15:04:05 GMT",
    "",
    "\u{e9}",
];

/// A value that is likely for the name.
fn usual_value(name: &str) -> impl Strategy<Value = String> + use<> {
    let values: &[&str] = match name {
        "Content-Length" => &["0", "12", "1000"],
        "Transfer-Encoding" => &["chunked", "Chunked"],
        "Connection" => &["close", "keep-alive", "Keep-Alive, close"],
        "Range" => &["bytes=1-5", "bytes=5-", "bytes=-5", "bytes=0-1,5-6"],
        "Content-Range" => &[
            "bytes 1-5/9",
            "bytes 0-0/1",
            "bytes 1-5/*",
            "bytes 7-999/1000",
        ],
        "Content-Type" => &["text/html", "multipart/byteranges; boundary=a"],
        "Content-Encoding" => &["gzip", "br"],
        _ => &[
            "\"a\"",
            "\"abcdefgh-12345\"",
            "W/\"a\"",
            "Mon, 02 Jan 2006 15:04:05 GMT",
        ],
    };
    let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
    let long = (Just('v'), 1_usize..300)
        .prop_map(|(byte, len)| format!("\"{}\"", String::from(byte).repeat(len)));
    prop_oneof![9 => select(values), 1 => long]
}

fn field() -> impl Strategy<Value = String> {
    let name = select(NAMES.to_vec());
    name.prop_flat_map(|name| {
        let any_value = select(VALUES.to_vec()).prop_map(str::to_owned);
        let value = prop_oneof![5 => usual_value(name), 2 => any_value];
        let name = select(vec![
            name.to_owned(),
            name.to_lowercase(),
            name.to_uppercase(),
        ]);
        let colon = select(vec![": ", ": ", ": ", ": ", ":", ":\t ", " : "]);
        let behind = select(vec!["", "", "", "", " ", "\t  \t"]);
        (name, colon, value, behind)
            .prop_map(|(name, colon, value, behind)| format!("{name}{colon}{value}{behind}"))
    })
}

/// Lines, most of which end right.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let start = select(START_LINES.to_vec()).prop_map(str::to_owned);
    let end = prop_oneof![60 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r"), 1 => Just("\r\n ")];
    let fields = prop::collection::vec((field(), end), 0..9);
    (start, fields).prop_map(|(start, fields)| {
        let fields: String = fields
            .iter()
            .map(|(field, end)| format!("{field}{end}"))
            .collect();
        format!("{start}\r\n{fields}\r\n").into_bytes()
    })
}

/// A change of a few bytes.
#[derive(Debug, Clone)]
enum Damage {
    Replace(u8),
    Insert(u8),
    Remove,
}

fn damage() -> impl Strategy<Value = (Index, Damage)> {
    let byte = || prop_oneof![select(b"\r\n\t :,-/*\"0\x00\x7f\x80".to_vec()), any::<u8>(),];
    let damage = prop_oneof![
        byte().prop_map(Damage::Replace),
        byte().prop_map(Damage::Insert),
        Just(Damage::Remove),
    ];
    (any::<Index>(), damage)
}

/// A head, half of the time damaged, and a few bytes of the body.
pub(super) fn heads() -> impl Strategy<Value = Vec<u8>> {
    let damages = prop_oneof![Just(Vec::new()), prop::collection::vec(damage(), 1..4),];
    let body = select(vec!["", "", "body", "\r\n", "GET / HTTP/1.1\r\n\r\n"]);
    (lines(), damages, body).prop_map(|(mut bytes, damages, body)| {
        for (at, damage) in damages {
            let at = at.index(bytes.len());
            match damage {
                Damage::Replace(byte) => bytes[at] = byte,
                Damage::Insert(byte) => bytes.insert(at, byte),
                Damage::Remove => drop(bytes.remove(at)),
            }
        }
        bytes.extend_from_slice(body.as_bytes());
        bytes
    })
}
