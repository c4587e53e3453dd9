//! Requests of all kinds, whose responses are under way when the host of their member loses power: each client gets
//! the same bytes as without the failure, or a reset with a reason.

use std::io::{self, ErrorKind, Write as _};
use std::net::{SocketAddr, TcpStream};

use e2e::arrange::{run, wait_until};
use e2e::assert_same_bytes;
use e2e::clients::read_some;
use e2e::pool::{Pool, pool_addresses};
use e2e::sockets::{dial_from, reset};

use crate::moments::{owner, split};

/// The member whose host loses power.
const FIRST_MEMBER: usize = 0;
/// Bytes that a client reads before the failure, of longer responses.
const PART_BYTES: usize = 40_000;
/// Most bytes of a request or response head that is read at once.
const BUFFER_BYTES: usize = 1 << 16;

/// The right outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// All bytes.
    Exact,
    /// A reset with a reason in which these words occur.
    Reset(&'static str),
    /// Either.
    ExactOrReset,
}

/// A request, and the state of its connection.
struct Case {
    label: &'static str,
    request: Vec<u8>,
    expect: Expect,
}

fn case(label: &'static str, request: impl Into<Vec<u8>>, expect: Expect) -> Case {
    Case {
        label,
        request: request.into(),
        expect,
    }
}

/// A request for `target` with these header fields.
fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: pool\r\n{fields}\r\n")
}

/// A client with a part of its response.
struct Client {
    stream: TcpStream,
    got: Vec<u8>,
}

impl Client {
    fn ask(stream: TcpStream, request: &[u8]) -> Self {
        (&stream).write_all(request).expect("a request");
        let got = Vec::new();
        Self { stream, got }
    }

    fn address(&self) -> SocketAddr {
        self.stream.local_addr().expect("an address")
    }

    /// Reads up to the end of the response, or this many bytes.
    fn read_up_to(&mut self, bytes: usize) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        while self.got.len() < bytes && !is_whole(&self.got) {
            let len = read_some(&self.stream, &mut buffer)?;
            if len == 0 {
                let is_closed = split(&self.got).is_some_and(|(head, _)| length(&head).is_none());
                return if is_closed {
                    Ok(())
                } else {
                    Err(ErrorKind::UnexpectedEof.into())
                };
            }
            self.got.extend_from_slice(&buffer[..len]);
        }
        Ok(())
    }

    /// Reads a response, whose content is missing after HEAD.
    fn read_until_idle(&mut self, is_head: bool) -> io::Result<()> {
        if !is_head {
            return self.read_up_to(usize::MAX);
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        while split(&self.got).is_none() {
            let len = read_some(&self.stream, &mut buffer)?;
            self.got.extend_from_slice(&buffer[..len]);
        }
        Ok(())
    }

    /// Status line and body.
    fn finish(&mut self) -> io::Result<(String, Vec<u8>)> {
        self.read_up_to(usize::MAX)?;
        let (head, body) = split(&self.got).expect("a head");
        Ok((
            head.lines().next().unwrap_or_default().to_owned(),
            body.to_vec(),
        ))
    }
}

fn length(head: &str) -> Option<usize> {
    if head.starts_with("HTTP/1.1 304") {
        return Some(0);
    }
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().expect("a length"))
    })
}

fn is_whole(bytes: &[u8]) -> bool {
    let Some((head, body)) = split(bytes) else {
        return false;
    };
    length(&head).is_some_and(|length| body.len() >= length)
}

/// The reason for the reset of a client's connection.
fn reason(pool: &Pool, client: SocketAddr) -> String {
    let client = client.to_string();
    let mut found = None;
    wait_until("a reset has a reason", || {
        let events = pool.members.iter();
        let mut events = events.flat_map(|it| it.program.events_of("refused"));
        found = events.find(|event| event["client"] == client.as_str());
        found.is_some()
    });
    found.expect("an event")["reason"].to_string()
}

/// The host of a member loses power in the middle of all responses.
fn survive(label: &str, pool: Pool, cases: Vec<Case>) {
    let address = pool_addresses()[0];
    let mut clients = Vec::new();
    for case in &cases {
        let mut reference = Client::ask(pool.scene.connect_to(address), &case.request);
        let expected = reference.finish().expect(case.label);
        let mut client = loop {
            let stream = pool.scene.connect_to(address);
            if owner(&pool, stream.local_addr().expect("an address")) == FIRST_MEMBER {
                break Client::ask(stream, &case.request);
            }
        };
        client.read_up_to(PART_BYTES).expect(case.label);
        clients.push((case, client, expected));
    }
    pool.members[FIRST_MEMBER]
        .program
        .host
        .power_off()
        .expect("off");
    let mut wrong = Vec::new();
    for (case, mut client, expected) in clients {
        let finished = client.finish();
        match (finished, case.expect) {
            (Ok((status, body)), Expect::Exact | Expect::ExactOrReset) => {
                assert_eq!(status, expected.0, "{}", case.label);
                assert_same_bytes(case.label, &expected.1, &body);
            }
            (Err(error), Expect::Reset(words)) if is_reset(&error) => {
                let reason = reason(&pool, client.address());
                assert!(reason.contains(words), "{}: {reason}", case.label);
            }
            (Err(error), Expect::ExactOrReset) if is_reset(&error) => {
                eprintln!("{}: {}", case.label, reason(&pool, client.address()));
            }
            (finished, expect) => {
                let finished = finished.map(|(status, body)| (status, body.len()));
                wrong.push(format!("{}: {finished:?}, not {expect:?}", case.label));
            }
        }
    }
    assert!(wrong.is_empty(), "{label}: {wrong:#?}");
    pool.stop();
}

fn is_reset(error: &io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionReset
}

/// The length of the head of a response with one byte in `X-Pad`.
fn padded_head_len(pool: &Pool) -> usize {
    let stream = pool.scene.connect_to(pool_addresses()[0]);
    let mut client = Client::ask(stream, get("/big.bin?odd=x", "").as_bytes());
    client.finish().expect("a response");
    let (head, _) = split(&client.got).expect("a head");
    head.len()
}

#[test]
fn head_that_fits_into_a_timestamp_is_protected() {
    let pool = Pool::of("objects-heads", 2);
    let least = padded_head_len(&pool);
    // The request is shorter than the response: of two segments, no repetition is whole.
    let head_of = |len: usize| {
        let more = len - least;
        let (pad, odd) = ("x".repeat(more / 2), "x".repeat(more % 2 + 1));
        get(&format!("/big.bin?pad={pad}&odd={odd}"), "")
    };
    let cases = vec![
        case("head of 2046 bytes", head_of(2046), Expect::Exact),
        case("head of 2047 bytes", head_of(2047), Expect::Exact),
        case(
            "head of 2048 bytes",
            head_of(2048),
            Expect::Reset("not protected"),
        ),
    ];
    survive("heads", pool, cases);
}

#[test]
fn request_of_any_length_is_exact_or_reset() {
    let pool = Pool::of("objects-lengths", 2);
    let request_of = |len: usize| {
        let bare = get("/big.bin", "A: \r\nB: \r\n").len();
        let fill = len - bare;
        let (a, b) = ("a".repeat(fill / 2), "b".repeat(fill - fill / 2));
        let request = get("/big.bin", &format!("A: {a}\r\nB: {b}\r\n"));
        assert_eq!(request.len(), len);
        request
    };
    let split = Expect::Reset("not protected");
    let cases = [
        (1448, Expect::Exact),
        (1449, split),
        (8191, split),
        (8192, split),
        (8193, Expect::ExactOrReset),
        (12_000, Expect::ExactOrReset),
    ];
    let cases = cases.map(|(len, expect)| case("long request", request_of(len), expect));
    survive("lengths", pool, cases.into());
}

#[test]
fn doubtful_request_is_exact_or_reset() {
    let pool = Pool::of("objects-doubt", 2);
    let cases = vec![
        case(
            "bare LF",
            "GET /big.bin HTTP/1.1\nHost: pool\n\n",
            Expect::ExactOrReset,
        ),
        case(
            "bare LF at one line",
            "GET /big.bin HTTP/1.1\r\nHost: pool\nX: y\r\n\r\n",
            Expect::ExactOrReset,
        ),
        case(
            "length and chunks",
            get(
                "/big.bin",
                "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            ),
            Expect::ExactOrReset,
        ),
        case(
            "two lengths",
            get("/big.bin", "Content-Length: 0\r\nContent-Length: 5\r\n"),
            Expect::ExactOrReset,
        ),
        case(
            "body",
            [get("/big.bin", "Content-Length: 5\r\n"), "hello".into()].concat(),
            Expect::ExactOrReset,
        ),
        case(
            "empty line first",
            format!("\r\n{}", get("/big.bin", "")),
            Expect::ExactOrReset,
        ),
        case(
            "two spaces",
            "GET  /big.bin HTTP/1.1\r\nHost: pool\r\n\r\n",
            Expect::ExactOrReset,
        ),
        case(
            "lower case",
            "get /big.bin HTTP/1.1\r\nHost: pool\r\n\r\n",
            Expect::ExactOrReset,
        ),
        case(
            "absolute form",
            "GET http://pool/big.bin HTTP/1.1\r\nHost: pool\r\n\r\n",
            Expect::ExactOrReset,
        ),
        case(
            "field without a name",
            get("/big.bin", ": x\r\n"),
            Expect::ExactOrReset,
        ),
        case(
            "space before a colon",
            get("/big.bin", "Range : bytes=5-\r\n"),
            Expect::ExactOrReset,
        ),
        case(
            "folded field",
            get("/big.bin", "X: a\r\n Range: bytes=5-\r\n"),
            Expect::ExactOrReset,
        ),
        case(
            "other unit",
            get("/big.bin", "Range: lines=5-\r\n"),
            Expect::ExactOrReset,
        ),
        case(
            "range of a wrong order",
            get("/big.bin", "Range: bytes=9-5\r\n"),
            Expect::ExactOrReset,
        ),
        case(
            "two ranges in two fields",
            get("/big.bin", "Range: bytes=0-\r\nRange: bytes=9-\r\n"),
            Expect::ExactOrReset,
        ),
    ];
    survive("doubt", pool, cases);
}

#[test]
fn request_for_a_part_is_continued() {
    let pool = Pool::of("objects-parts", 2);
    let etag = {
        let stream = pool.scene.connect_to(pool_addresses()[0]);
        let mut client = Client::ask(stream, get("/big.bin", "").as_bytes());
        client.finish().expect("a response");
        let (head, _) = split(&client.got).expect("a head");
        let line = head.lines().find(|line| line.starts_with("ETag: "));
        line.expect("an entity tag")["ETag: ".len()..].to_owned()
    };
    let cases = vec![
        case(
            "from a byte on",
            get("/big.bin", "Range: bytes=1000-\r\n"),
            Expect::Exact,
        ),
        case(
            "from the first byte on",
            get("/big.bin", "Range: bytes=0-\r\n"),
            Expect::Exact,
        ),
        case(
            "part",
            get("/big.bin", "Range: bytes=5-9000000\r\n"),
            Expect::Exact,
        ),
        case(
            "part behind the end",
            get("/big.bin", "Range: bytes=5-99000000\r\n"),
            Expect::Exact,
        ),
        case(
            "part of this version",
            get(
                "/big.bin",
                &format!("Range: bytes=1000-\r\nIf-Range: {etag}\r\n"),
            ),
            Expect::Exact,
        ),
        case(
            "part of another version",
            get("/big.bin", "Range: bytes=1000-\r\nIf-Range: \"other\"\r\n"),
            Expect::ExactOrReset,
        ),
        case(
            "last bytes",
            get("/big.bin", "Range: bytes=-9000000\r\n"),
            Expect::Reset("not protected"),
        ),
        case(
            "last bytes, more than there are",
            get("/big.bin", "Range: bytes=-99000000\r\n"),
            Expect::Reset("not protected"),
        ),
        case(
            "two parts",
            get("/big.bin", "Range: bytes=0-5000000,6000000-9000000\r\n"),
            Expect::Reset("not protected"),
        ),
        case(
            "part behind the object",
            get("/small/3", "Range: bytes=99000-\r\n"),
            Expect::Exact,
        ),
        case(
            "version that the client has",
            get("/big.bin", &format!("If-None-Match: {etag}\r\n")),
            Expect::Exact,
        ),
        case(
            "condition that holds",
            get("/big.bin", &format!("If-Match: {etag}\r\n")),
            Expect::Exact,
        ),
        case("HTTP/1.0", "GET /big.bin HTTP/1.0\r\n\r\n", Expect::Exact),
        case(
            "HTTP/1.0 that stays",
            "GET /big.bin HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            Expect::Exact,
        ),
    ];
    survive("parts", pool, cases);
}

/// The number of acknowledgements that a member has made for its clients.
fn acks_made(pool: &Pool, member: usize) -> u64 {
    let program = &pool.members[member].program;
    let output = program.outlive(&["status", "--json"]);
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text
        .lines()
        .find(|line| line.contains("acks_made"))
        .expect("the member's status");
    let status: serde_json::Value = serde_json::from_str(line).expect("JSON");
    status["counters"]["acks_made"].as_u64().expect("a number")
}

/// A cache asks whether a copy is still right, and the host dies before the next question. Each client knows that the
/// connection is idle, and repeats no request to hear that.
#[test]
fn connection_idle_after_a_response_without_content_is_served_by_another_member() {
    let pool = Pool::of("objects-empty", 2);
    pool.scene.write("www/empty", b"");
    let requests = [
        "HEAD /big.bin HTTP/1.1\r\nHost: pool\r\n\r\n".to_owned(),
        get(
            "/big.bin",
            "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n",
        ),
        get("/missing", ""),
        get("/empty", ""),
        get("/small/3", ""),
    ];
    let mut reference = Client::ask(
        pool.scene.connect_to(pool_addresses()[0]),
        get("/small/5", "").as_bytes(),
    );
    let expected = reference.finish().expect("a response");
    let before = acks_made(&pool, FIRST_MEMBER);
    let mut clients = Vec::new();
    for request in &requests {
        let mut client = loop {
            let stream = pool.scene.connect_to(pool_addresses()[0]);
            if owner(&pool, stream.local_addr().expect("an address")) == FIRST_MEMBER {
                break Client::ask(stream, request.as_bytes());
            }
        };
        client
            .read_until_idle(request.starts_with("HEAD"))
            .expect("a response");
        clients.push(client);
    }
    let asked = u64::try_from(clients.len()).expect("a number");
    wait_until("the clients are told", || {
        acks_made(&pool, FIRST_MEMBER) >= before + asked
    });
    for client in &clients {
        let socket = run(
            &pool.scene.client,
            &format!("ss -Htino sport = :{}", client.address().port()),
        );
        assert!(
            !socket.contains("retrans:"),
            "the client repeats its request: {socket}"
        );
        assert!(
            !socket.contains("unacked:"),
            "the client keeps its request: {socket}"
        );
    }
    pool.members[FIRST_MEMBER]
        .program
        .host
        .power_off()
        .expect("off");
    pool.await_members(1);
    for (mut client, request) in clients.into_iter().zip(&requests) {
        client.got.clear();
        (&client.stream)
            .write_all(get("/small/5", "").as_bytes())
            .expect("a request");
        let response = client.finish();
        assert!(
            response.as_ref().is_ok_and(|got| *got == expected),
            "{request}: {response:?}"
        );
    }
    pool.assert_none_refused();
    pool.stop();
}

/// A slow client sends its request byte by byte. The host dies between two of them, or behind the last.
#[test]
fn request_in_pieces_is_exact_or_reset() {
    let pool = Pool::of("objects-pieces", 2);
    let request = get("/small/5", "");
    let cut = [1, 4, 20, request.len() - 2, request.len() - 1];
    let clients: Vec<_> = cut
        .map(|cut| {
            let stream = pool.scene.connect_to(pool_addresses()[0]);
            let address = stream.local_addr().expect("an address");
            let member = owner(&pool, address);
            let pieces = request.as_bytes()[..cut].chunks(3);
            pieces.for_each(|piece| (&stream).write_all(piece).expect("a piece"));
            (stream, address, member, cut)
        })
        .into();
    pool.members[FIRST_MEMBER]
        .program
        .host
        .power_off()
        .expect("off");
    let mut reference = Client::ask(
        pool.scene.connect_to(pool_addresses()[0]),
        request.as_bytes(),
    );
    let expected = reference.finish().expect("a response");
    for (stream, address, member, cut) in clients {
        let mut client = Client::ask(stream, &request.as_bytes()[cut..]);
        match client.finish() {
            Ok(response) => assert!(response == expected, "cut at {cut}"),
            Err(error) => {
                assert!(
                    is_reset(&error) && member == FIRST_MEMBER,
                    "cut at {cut}: {error}"
                );
                eprintln!("cut at {cut}: {}", reason(&pool, address));
            }
        }
    }
    pool.stop();
}

/// The same port, again and again: no member takes a segment of a new connection for a segment of an earlier one.
#[test]
fn port_is_reused_at_once() {
    let pool = Pool::of("objects-ports", 2);
    let address = pool_addresses()[0];
    let fetch = |port: u16, is_whole: bool| {
        let stream = dial_from(&pool.scene.client, port, address).expect("a connection");
        let mut client = Client::ask(stream, get("/big.bin", "").as_bytes());
        if is_whole {
            let (_, body) = client.finish().expect("a response");
            assert_same_bytes("port", &e2e::pattern(body.len()), &body);
        } else {
            client.read_up_to(PART_BYTES).expect("a part");
        }
        reset(client.stream);
    };
    for port in 24_000..24_004 {
        fetch(port, false);
        fetch(port, false);
        fetch(port, true);
        fetch(port, false);
    }
    pool.members[FIRST_MEMBER]
        .program
        .host
        .power_off()
        .expect("off");
    for port in 24_000..24_004 {
        fetch(port, true);
        fetch(port, true);
    }
    pool.assert_none_refused();
    pool.stop();
}
