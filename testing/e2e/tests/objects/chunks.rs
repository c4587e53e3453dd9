//! Responses in chunks, which every server of the pool sends in the same chunks.

use std::net::TcpStream;

use e2e::assert_same_bytes;
use e2e::clients::{read_some, write};
use e2e::pool::{Pool, pool_addresses};

use super::store::StoredPool;

/// Node makes a chunk of each piece. Pieces look like the end of a body.
const SERVICE: &str = r#"
const http = require("http"), { once } = require("events");
const piece = number => Buffer.alloc(1000 + number * 37 % 9000, `${number}\r\n0\r\n\r\n`);
const answer = async (request, response) => {
  response.writeHead(200, { ETag: '"pieces"' });
  for (let number = 0; number < 4000; number++)
    if (!response.write(piece(number))) await once(response, "drain");
  response.end();
};
for (const host of ["0.0.0.0", "::"])
  http.createServer(answer).listen({ port: Number(process.argv[2]), host, ipv6Only: host == "::" });
"#;
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// Bytes that a client has when the host of its member loses power.
const PART_BYTES: usize = 4 << 20;

fn service(pool: &Pool, name: &str) -> Vec<String> {
    let script = pool.scene.write(&format!("{name}.js"), SERVICE);
    let port = pool_addresses()[0].port().to_string();
    ["node", &script.to_string_lossy(), &port]
        .map(str::to_owned)
        .into()
}

fn ask(stream: &TcpStream) {
    write(stream, b"GET /pieces HTTP/1.1\r\nHost: pool\r\n\r\n");
}

/// Reads on until the body of the response has at least so many bytes.
fn read_up_to(stream: &TcpStream, mut body: Vec<u8>, len: usize) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 16];
    let mut is_head = body.is_empty();
    while body.len() < len {
        let read = read_some(&mut &*stream, &mut buffer).expect("more of the response");
        assert_ne!(read, 0, "the end after {} bytes", body.len());
        body.extend_from_slice(&buffer[..read]);
        if let Some(end) = body.windows(4).position(|four| four == b"\r\n\r\n")
            && is_head
        {
            body.drain(..end + 4);
            is_head = false;
        }
    }
    body
}

/// The body of a response on a connection that nothing happens to.
fn reference(pool: &Pool) -> Vec<u8> {
    let stream = pool.connect(pool_addresses()[0]);
    let request = b"GET /pieces HTTP/1.1\r\nHost: pool\r\nConnection: close\r\n\r\n";
    write(&stream, request);
    let response = e2e::clients::read_to_end(&stream);
    let end = response.windows(4).position(|four| four == b"\r\n\r\n");
    let body = response[end.expect("a head") + 4..].to_vec();
    assert!(body.ends_with(LAST_CHUNK));
    body
}

#[test]
fn response_in_chunks_is_continued_and_so_is_the_next() {
    let mut stored = StoredPool::of_members("objects-chunks", 0);
    for _ in 0..2 {
        let more = ["--deterministic-chunks"];
        stored.pool.add_member_with(&more, service);
    }
    for member in &stored.pool.members {
        member.program.wait_for("store_connected", 1);
    }
    let pool = &stored.pool;
    let expected = reference(pool);
    let stream = pool.connect(pool_addresses()[1]);
    ask(&stream);
    let part = read_up_to(&stream, Vec::new(), PART_BYTES);
    let dies = pool.server_of(stream.local_addr().expect("an address"));
    pool.members[dies].program.host.power_off().expect("off");
    let body = read_up_to(&stream, part, expected.len());
    assert_same_bytes("continued", &expected, &body);
    // The member has found the end, and protects the next response.
    ask(&stream);
    let body = read_up_to(&stream, Vec::new(), PART_BYTES);
    let status = pool.members[1 - dies]
        .program
        .outlive(&["status", "--json"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(!status.contains("\"chunked\""), "{status}");
    let body = read_up_to(&stream, body, expected.len());
    assert_same_bytes("next", &expected, &body);
    assert_eq!(pool.revived().len(), 1);
    pool.assert_none_refused();
    stored.stop();
}
