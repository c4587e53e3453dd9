//! `bpf/objects/head.h`: the scanner of HTTP heads finds the heads that the crate `http1` finds, with the same meaning.

use std::{
    cell::Cell,
    collections::BTreeSet,
    fmt::Debug,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::AsFd as _,
    process::Command,
    thread,
};

use http1::version::VersionCheck;
use http1::{BodyLength, Doubt, Method, parse_request, parse_response};
use libbpf_rs::{TC_EGRESS, TcHookBuilder};
use objects::head::{RequestSummary, ResponseSummary};
use proptest::prelude::*;
use proptest::sample::{Index, select};

mod generated;
mod scanner;

use generated::heads;
use scanner::{Scanner, Verdict};

const CHECKS: [VersionCheck; 4] = [
    VersionCheck::Etag,
    VersionCheck::Modified,
    VersionCheck::Length,
    VersionCheck::Off,
];
/// Fields whose values the scanner reads.
const READ_FIELDS: [&str; 9] = [
    "content-length",
    "transfer-encoding",
    "connection",
    "range",
    "content-range",
    "content-type",
    "content-encoding",
    "etag",
    "last-modified",
];

type Model<T> = Result<Option<T>, Doubt>;

fn model_of_request(bytes: &[u8]) -> Model<RequestSummary> {
    Ok(parse_request(bytes)?.map(|head| RequestSummary::of(&head)))
}

fn model_of_response(bytes: &[u8], method: Method, check: VersionCheck) -> Model<ResponseSummary> {
    let head = parse_response(bytes, method)?;
    head.map(|head| ResponseSummary::of(&head, check))
        .transpose()
}

/// Whether the bytes have a rare form that the scanner may refuse (see the list in the header).
fn has_rare_form(bytes: &[u8]) -> bool {
    let mut before = 0;
    let has_bare_lf = bytes.iter().any(|byte| {
        let is_bare = *byte == b'\n' && before != b'\r';
        before = *byte;
        is_bare
    });
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let start_is_rare = bytes.starts_with(b"\r")
        || bytes.starts_with(b"CONNECT ")
        || (!bytes.starts_with(b"HTTP/") && !lines[0].is_ascii());
    has_bare_lf || start_is_rare || has_rare_field(&lines[1..])
}

fn has_rare_field(lines: &[&[u8]]) -> bool {
    let mut seen = Vec::new();
    lines.iter().any(|line| {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return false;
        };
        let name = String::from_utf8_lossy(&line[..colon]).to_lowercase();
        let value = line[colon + 1..].trim_ascii();
        let is_repeated = seen.contains(&name);
        seen.push(name.clone());
        let value_is_rare = match &*name {
            "content-length" => value.len() > 19,
            "transfer-encoding" => !value.eq_ignore_ascii_case(b"chunked"),
            "connection" | "content-type" => is_repeated,
            "content-range" => {
                let blanks = value.iter().filter(|byte| byte.is_ascii_whitespace());
                let numbers = value.split(|byte| !byte.is_ascii_digit());
                blanks.count() > 1 || numbers.into_iter().any(|number| number.len() > 19)
            }
            _ => false,
        };
        let is_read = READ_FIELDS.contains(&&*name);
        is_read && (value_is_rare || !value.is_ascii() || line.len() - colon > 256)
    })
}

/// A whole head has the meaning that the model finds. In doubt, the model has a doubt, too, or the form is rare.
fn assert_agreement<T: PartialEq + Debug>(scanned: Verdict<T>, model: Model<T>, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match (scanned, model) {
        (Verdict::Whole(scanned), Ok(Some(model))) => assert_eq!(scanned, model, "{text:?}"),
        (Verdict::Partial, Ok(None)) | (Verdict::Doubt, Err(_)) => {}
        (Verdict::Doubt, Ok(_)) if has_rare_form(bytes) => {}
        (scanned, model) => panic!("{scanned:?} is not {model:?}: {text:?}"),
    }
}

/// Returns the position of the verdict in [`Counts`].
fn compare_request(scanner: &Scanner, payload: &[u8], len: usize) -> usize {
    let bytes = &payload[..len];
    let scanned = scanner.request(payload, len);
    assert_agreement(scanned, model_of_request(bytes), bytes);
    position(scanned)
}

fn compare_response(
    scanner: &Scanner,
    payload: &[u8],
    len: usize,
    method: Method,
    check: VersionCheck,
) -> usize {
    let bytes = &payload[..len];
    let scanned = scanner.response(payload, len, method, check);
    assert_agreement(scanned, model_of_response(bytes, method, check), bytes);
    position(scanned)
}

/// Whole heads, partial heads and doubts.
type Counts = [Cell<u32>; 3];

fn position<T>(verdict: Verdict<T>) -> usize {
    match verdict {
        Verdict::Whole(_) => 0,
        Verdict::Partial => 1,
        Verdict::Doubt => 2,
    }
}

fn count(counts: &Counts, position: usize) {
    counts[position].update(|count| count + 1);
}

fn methods() -> impl Strategy<Value = Method> {
    select(vec![Method::Get, Method::Get, Method::Head, Method::Other])
}

#[test]
fn generated_heads_have_the_meaning_of_the_model() {
    let scanner = Scanner::load();
    let (requests, responses) = (Counts::default(), Counts::default());
    let checks = select(CHECKS.to_vec());
    proptest!(ProptestConfig::with_cases(12_000), |(
        head in heads(), method in methods(), check in checks, cut in any::<Index>(),
    )| {
        for len in [head.len(), cut.index(head.len())] {
            count(&requests, compare_request(&scanner, &head, len));
            count(&responses, compare_response(&scanner, &head, len, method, check));
        }
    });
    let counts = requests.iter().chain(&responses).map(Cell::get);
    let counts: Vec<u32> = counts.collect();
    assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
}

/// The bytes behind the cut are in the frame, and are not looked at.
#[test]
fn head_cut_at_each_byte_has_the_verdict_of_the_model() {
    let scanner = Scanner::load();
    proptest!(ProptestConfig::with_cases(200), |(head in heads(), method in methods())| {
        for len in 0..=head.len() {
            compare_request(&scanner, &head, len);
            compare_response(&scanner, &head, len, method, VersionCheck::Etag);
        }
    });
}

#[test]
fn common_head_is_partial_until_its_end() {
    let scanner = Scanner::load();
    let request = b"GET /large HTTP/1.1\r\nHost: a\r\nRange: bytes=5-\r\nCookie: \xc3\xa9\r\n\r\n";
    let response =
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\nContent-Range: bytes 5-8/9\r\n\
        ETag: \"a\"\r\nX: \xff\r\n\r\n";
    let (method, check) = (Method::Get, VersionCheck::Etag);
    for len in 0..request.len() {
        assert_eq!(scanner.request(request, len), Verdict::Partial, "{len}");
    }
    for len in 0..response.len() {
        let scanned = scanner.response(response, len, method, check);
        assert_eq!(scanned, Verdict::Partial, "{len}");
    }
    assert_eq!(compare_request(&scanner, request, request.len()), 0);
    let scanned = compare_response(&scanner, response, response.len(), method, check);
    assert_eq!(scanned, 0);
}

/// The verdict on a request with these fields, which is also compared with the model.
fn request_with(scanner: &Scanner, fields: &str) -> Verdict<RequestSummary> {
    request(scanner, &format!("GET / HTTP/1.1\r\n{fields}\r\n"))
}

fn request(scanner: &Scanner, text: &str) -> Verdict<RequestSummary> {
    compare_request(scanner, text.as_bytes(), text.len());
    scanner.request(text.as_bytes(), text.len())
}

/// The verdict on a response to GET, which is also compared with the model.
fn response(scanner: &Scanner, text: &str) -> Verdict<ResponseSummary> {
    let (bytes, method, check) = (text.as_bytes(), Method::Get, VersionCheck::Etag);
    compare_response(scanner, bytes, bytes.len(), method, check);
    scanner.response(bytes, bytes.len(), method, check)
}

/// Heads that two programs could understand differently (RFC 9112, 2.2, 5, 6.3 and 11.2).
#[test]
fn ambiguous_request_is_in_doubt() {
    let scanner = Scanner::load();
    for fields in [
        "Host: a\n",
        "Host: a\n\n",
        "Host:\n\nX: a\r\n",
        "Range:\n\nX: a\r\n",
        "Host: a\r",
        "Host: a\rb\r\n",
        "Host: a\r\n b\r\n",
        "Host : a\r\n",
        " Host: a\r\n",
        ": a\r\n",
        "Host\r\n",
        "Host: a\0\r\n",
        "Content-Length: 3\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-length: 4\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: -3\r\n",
        "Content-Length: 3, 3\r\n",
        "Content-Length: 0x3\r\n",
        "Content-Length: 3 3\r\n",
        "Content-Length:\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length: 00000000000000000003\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: \u{b}chunked\r\n",
    ] {
        let scanned = request_with(&scanner, fields);
        assert_eq!(scanned, Verdict::Doubt, "{fields:?}");
    }
    for text in [
        "GET /\r\n",
        "GET / HTTP/1.1\n\n\r\n",
        "GET / HTTP/1.1\r\n\n",
        "GET  / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1 \r\n\r\n",
        "GET /a b HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.2\r\n\r\n",
        "GET / HTTP/1.10\r\n\r\n",
        "GET / http/1.1\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}",
    ] {
        assert_eq!(request(&scanner, text), Verdict::Doubt, "{text:?}");
    }
}

/// With several fields, scanner and model would look at another one for a suffix.
#[test]
fn several_ranges_have_no_suffix() {
    let scanner = Scanner::load();
    for (fields, has_ranges, has_suffix) in [
        ("Range: bytes=-5\r\n", false, true),
        ("Range: bytes=-5\r\nRange: bytes=0-1\r\n", true, false),
        ("Range: bytes=0-1\r\nRange: bytes=-5\r\n", true, false),
        ("Range: bytes=-5,0-1\r\n", true, false),
    ] {
        let Verdict::Whole(summary) = request_with(&scanner, fields) else {
            panic!("{fields:?} is in doubt")
        };
        let found = (summary.has_ranges, summary.has_suffix);
        assert_eq!(found, (has_ranges, has_suffix), "{fields:?}");
    }
}

#[test]
fn ambiguous_response_is_in_doubt() {
    let scanner = Scanner::load();
    for text in [
        "HTTP/1.1 200 OK\n\nX: a\r\n\r\n",
        "HTTP/1.1 200\n\nX: a\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1  200 OK\r\n\r\n",
        "HTTP/1.1\r\n\r\n",
        "220 smtp.example.org\r\n",
        "HTTP/1.1 206 x\r\nContent-Range: bytes 5-1/9\r\n\r\n",
        "HTTP/1.1 206 x\r\nContent-Range: bytes 1-9/9\r\n\r\n",
        "HTTP/1.1 206 x\r\nContent-Range: bytes */9\r\n\r\n",
        "HTTP/1.1 206 x\r\nContent-Range: bytes 1-5\r\n\r\n",
        "HTTP/1.1 206 x\r\nContent-Range: bytes 1-5/\r\n\r\n",
        "HTTP/1.1 206 x\r\nContent-Range: bytes 1-5/9*\r\n\r\n",
        "HTTP/1.1 206 x\r\nContent-Range: bytes 1-5/*9\r\n\r\n",
        "HTTP/1.1 206 x\r\nContent-Range: bytes 1/5-9\r\n\r\n",
        "HTTP/1.1 206 x\r\nContent-Range: lines 1-5/9\r\n\r\n",
        "HTTP/1.1 200 x\r\nETag: \"a\"\r\nETag: \"a\"\r\n\r\n",
        "HTTP/1.1 200 x\r\nLast-Modified: a\r\nlast-modified: a\r\n\r\n",
        "HTTP/1.1 304 x\r\nContent-Length: +1\r\n\r\n",
    ] {
        assert_eq!(response(&scanner, text), Verdict::Doubt, "{text:?}");
    }
}

#[test]
fn response_without_body_ends_with_the_head() {
    let scanner = Scanner::load();
    let fields = "Content-Length: 9\r\n\r\n";
    for status in [100, 103, 204, 304] {
        let text = format!("HTTP/1.1 {status} x\r\n{fields}");
        let Verdict::Whole(summary) = response(&scanner, &text) else {
            panic!("{status} is in doubt")
        };
        assert_eq!(summary.body, BodyLength::Bytes(0), "{status}");
    }
    let text = format!("HTTP/1.1 200 OK\r\n{fields}");
    let body = |method| {
        let bytes = text.as_bytes();
        let scanned = scanner.response(bytes, bytes.len(), method, VersionCheck::Etag);
        compare_response(&scanner, bytes, bytes.len(), method, VersionCheck::Etag);
        match scanned {
            Verdict::Whole(summary) => summary.body,
            scanned => panic!("{scanned:?}"),
        }
    };
    assert_eq!(body(Method::Head), BodyLength::Bytes(0));
    assert_eq!(body(Method::Get), BodyLength::Bytes(9));
}

/// A field with this name is read with each letter in both cases. No other byte may be in the place of a byte, and no
/// longer or shorter name is read. `scan` returns a verdict without the length of the head.
fn assert_exact_name<T: PartialEq + Debug>(
    scan: impl Fn(&str) -> Verdict<T>,
    name: &str,
    value: &str,
) {
    let named = |text: &str| scan(&format!("{text}: {value}\r\n"));
    let (found, unnamed) = (named(name), scan(""));
    assert_ne!(found, unnamed, "{name}");
    assert_eq!(named(&name.to_uppercase()), found);
    for text in [format!("{name}s"), format!("x{name}"), name[1..].to_owned()] {
        assert_eq!(named(&text), unnamed, "{text}");
    }
    for at in 0..name.len() {
        for byte in b'!'..=b'~' {
            let mut other = name.as_bytes().to_vec();
            other[at] = byte;
            let is_token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if is_token && !other.eq_ignore_ascii_case(name.as_bytes()) {
                let text = String::from_utf8(other).expect("ASCII");
                assert_eq!(named(&text), unnamed, "{text}");
            }
        }
    }
}

#[test]
fn names_of_request_fields_are_compared_exactly() {
    let scanner = Scanner::load();
    let scan = |fields: &str| match request_with(&scanner, fields) {
        Verdict::Whole(summary) => Verdict::Whole(RequestSummary { len: 0, ..summary }),
        verdict => verdict,
    };
    for (name, value) in [
        ("content-length", "3"),
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("range", "bytes=1-"),
        ("authorization", "a"),
        ("cookie", "a"),
        ("upgrade", "a"),
        ("expect", "a"),
    ] {
        assert_exact_name(scan, name, value);
    }
}

#[test]
fn names_of_response_fields_are_compared_exactly() {
    let scanner = Scanner::load();
    let scan = |fields: &str| match response(&scanner, &format!("HTTP/1.1 206 x\r\n{fields}\r\n")) {
        Verdict::Whole(summary) => Verdict::Whole(ResponseSummary { len: 0, ..summary }),
        verdict => verdict,
    };
    for (name, value) in [
        ("content-range", "bytes 1-5/9"),
        ("content-type", "multipart/byteranges; boundary=a"),
        ("content-encoding", "gzip"),
        ("etag", "\"a\""),
        ("last-modified", "Mon"),
    ] {
        assert_exact_name(scan, name, value);
    }
}

/// 100 fields are the most that the parser of the model takes.
#[test]
fn head_of_101_fields_is_in_doubt() {
    let scanner = Scanner::load();
    assert!(matches!(
        request_with(&scanner, &"a: b\r\n".repeat(100)),
        Verdict::Whole(_)
    ));
    assert_eq!(
        request_with(&scanner, &"a: b\r\n".repeat(101)),
        Verdict::Doubt
    );
}

/// A value that matters: 256 bytes are read, and no more.
#[test]
fn long_validator_is_in_doubt() {
    let scanner = Scanner::load();
    let tagged = |len: usize| {
        let tag = "t".repeat(len - 2);
        response(
            &scanner,
            &format!("HTTP/1.1 200 x\r\nContent-Length: 1\r\nETag: \"{tag}\"\r\n\r\n"),
        )
    };
    let hashes: BTreeSet<u32> = (2..=256)
        .map(|len| match tagged(len) {
            Verdict::Whole(summary) => summary.version,
            verdict => panic!("{verdict:?} on {len} bytes"),
        })
        .collect();
    assert_eq!(hashes.len(), 255);
    assert_eq!(tagged(257), Verdict::Doubt);
}

/// The scanner loads 512 bytes at once: a head is read in the same way wherever these end.
#[test]
fn head_across_chunks_has_the_meaning_of_the_model() {
    let scanner = Scanner::load();
    let fields = "Content-Length: 12\r\nETag: \"a\"\r\nConnection: close\r\n";
    for len in 380..520 {
        let filler = "x".repeat(len);
        for start in ["GET / HTTP/1.1", "HTTP/1.1 200 OK"] {
            let text = format!("{start}\r\nX: {filler}\r\n{fields}\r\n");
            let bytes = text.as_bytes();
            let (method, check) = (Method::Get, VersionCheck::Etag);
            let verdicts = [
                compare_request(&scanner, bytes, bytes.len()),
                compare_response(&scanner, bytes, bytes.len(), method, check),
            ];
            assert!(verdicts.contains(&0), "{len}");
        }
    }
}

/// Runs in a network namespace of its own, with a connection to port 80 and `sent` at the egress of the loopback.
fn with_connection(test: impl FnOnce(&Scanner, &mut TcpStream, &mut TcpStream) + Send) {
    let run = || {
        // SAFETY: the call concerns this thread alone, which does no other work.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "run the test as root");
        let up = ["link", "set", "lo", "mtu", "1500", "up"];
        let status = Command::new("ip").args(up).status();
        assert!(status.expect("iproute2").success());
        let scanner = Scanner::load();
        let mut programs = scanner.object.progs();
        let program = programs.find(|program| program.name() == "sent");
        let mut hook = TcHookBuilder::new(program.expect("a program").as_fd())
            .ifindex(1)
            .replace(true)
            .handle(1)
            .priority(1)
            .hook(TC_EGRESS);
        hook.create().expect("a qdisc");
        hook.attach().expect("a filter");
        let listener = TcpListener::bind("127.0.0.1:80").expect("a port");
        let mut client = TcpStream::connect("127.0.0.1:80").expect("a listener");
        let (mut server, _) = listener.accept().expect("a connection");
        test(&scanner, &mut client, &mut server);
    };
    thread::scope(|scope| scope.spawn(run).join().expect("the test passes"));
}

/// TCP keeps payload in fragments, and several segments are one packet until they reach the device.
#[test]
fn heads_in_fragments_have_the_meaning_of_the_model() {
    with_connection(|scanner, client, server| {
        let mut send = |bytes: &[u8]| {
            client.write_all(bytes).expect("a connection");
            let mut received = vec![0; bytes.len()];
            server.read_exact(&mut received).expect("the bytes");
            assert_eq!(scanner.linear_payload(), 0, "the payload is in fragments");
        };
        let lengths = [
            40, 64, 100, 700, 1400, 1500, 2900, 5000, 8188, 8189, 8192, 8193, 9000,
        ];
        for len in lengths {
            let filled = |start: &str| {
                let start = format!("{start}Content-Length: 7\r\nETag: \"a\"\r\nX: ");
                let filler = "x".repeat(len - start.len().min(len));
                format!("{start}{filler}\r\nLast-Modified: Mon\r\n\r\n")
            };
            let (get, ok) = (filled("GET / HTTP/1.1\r\n"), filled("HTTP/1.1 200 OK\r\n"));
            scanner.expect_segment(None);
            send(get.as_bytes());
            let (_, scanned) = scanner.found_request();
            assert_agreement(scanned, model_of_request(get.as_bytes()), get.as_bytes());
            let check = VersionCheck::Modified;
            scanner.expect_segment(Some(check));
            send(ok.as_bytes());
            let (_, scanned) = scanner.found_response();
            let model = model_of_response(ok.as_bytes(), Method::Get, check);
            assert_agreement(scanned, model, ok.as_bytes());
        }
    });
}
