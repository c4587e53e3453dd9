//! Dynamic responses: each is made from an input, which the service tells in `X-TRODS` (TRODS 7).

use std::net::TcpStream;

use e2e::clients::{read_some, read_to_end, write};
use e2e::pool::{Pool, pool_addresses};

use super::store::StoredPool;

/// A service that makes each response from an input: of the request, or a random one. The service ignores ranges.
const SERVICE: &str = r#"
import http.server, secrets, socket, sys, threading

LINES = 150_000
FILL = 200 * "x"

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        seed = (self.headers.get("X-TRODS") or "").strip() or secrets.token_hex(8)
        body = "".join(f"{seed}:{line:08d}{FILL}\n" for line in range(LINES)).encode()
        self.send_response(200)
        self.send_header("X-TRODS", seed)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

class Server6(Server):
    address_family = socket.AF_INET6

    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        super().server_bind()

port = int(sys.argv[1])
threading.Thread(target=Server6(("::", port), Handler).serve_forever, daemon=True).start()
Server(("0.0.0.0", port), Handler).serve_forever()
"#;
const LINE_COUNT: usize = 150_000;
const FILL_LEN: usize = 200;
/// Bytes that a client has when the host of its member loses power.
const PART_BYTES: usize = 2 << 20;

fn service(pool: &Pool, name: &str) -> Vec<String> {
    let script = pool.scene.write(&format!("{name}.py"), SERVICE);
    let port = pool_addresses()[0].port().to_string();
    let script = script.to_string_lossy();
    ["/usr/bin/python3", "-u", &script, &port]
        .map(str::to_owned)
        .into()
}

fn dynamic_pool(label: &str) -> StoredPool {
    let mut stored = StoredPool::of_members(label, 0);
    for _ in 0..2 {
        stored.pool.add_member_with(&["--dynamic"], service);
    }
    for member in &stored.pool.members {
        member.program.wait_for("store_connected", 1);
    }
    stored
}

fn ask(pool: &Pool, fields: &str) -> TcpStream {
    let stream = pool.connect(pool_addresses()[0]);
    let request = format!("GET /page HTTP/1.1\r\nHost: pool\r\nConnection: close\r\n{fields}\r\n");
    write(&stream, request.as_bytes());
    stream
}

/// The input of a whole response, of which each line tells the input. The head tells nothing.
fn input_of(response: &[u8]) -> String {
    let end = response.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = response.split_at(end.expect("a head") + 4);
    let head = String::from_utf8(head.to_vec()).expect("text");
    let body = String::from_utf8(body.to_vec()).expect("text");
    let (input, _) = body.split_once(':').expect("a line");
    let fill = "x".repeat(FILL_LEN);
    for (number, line) in body.lines().enumerate() {
        assert_eq!(line, format!("{input}:{number:08}{fill}"));
    }
    assert_eq!(body.lines().count(), LINE_COUNT);
    let field = head.lines().find_map(|line| line.strip_prefix("X-TRODS:"));
    assert_eq!(
        field.expect("a field").trim(),
        "",
        "the client has no input"
    );
    input.to_owned()
}

#[test]
fn dynamic_response_is_continued_with_the_same_input() {
    let stored = dynamic_pool("objects-dynamic");
    let pool = &stored.pool;
    let stream = ask(pool, "");
    let mut response = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while response.len() < PART_BYTES {
        let len = read_some(&mut &stream, &mut buffer).expect("more of the response");
        assert_ne!(len, 0, "the end after {} bytes", response.len());
        response.extend_from_slice(&buffer[..len]);
    }
    let dies = pool.server_of(stream.local_addr().expect("an address"));
    pool.members[dies].program.host.power_off().expect("off");
    response.extend(read_to_end(&stream));
    let input = input_of(&response);
    assert_eq!(pool.revived().len(), 1);
    pool.assert_none_refused();
    let other = input_of(&read_to_end(&ask(pool, "")));
    assert_ne!(input, other, "each response has an input of its own");
    stored.stop();
}

/// The client must not choose the input of a response.
#[test]
fn input_of_a_client_is_blanked() {
    let stored = dynamic_pool("objects-forged-input");
    let response = read_to_end(&ask(&stored.pool, "X-TRODS: 0123456789abcdef\r\n"));
    assert_ne!(input_of(&response), "0123456789abcdef");
    stored.stop();
}
