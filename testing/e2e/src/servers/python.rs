//! Servers in Python.
//!
//! Each recorded server has a directory of its own. Python lists the directory of its script, and the addresses of
//! Python's objects depend on the files found there.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Authority, SERVER_PORT, Server, site};
use crate::Scene;

/// Keep-alive and PUT, which Python's threaded HTTP server lacks.
const HTTP_SCRIPT: &str = r#"
import functools, http.server, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_PUT(self):
        left = int(self.headers["Content-Length"])
        with open(self.translate_path(self.path), "wb") as file:
            while left:
                part = self.rfile.read(min(left, 65536))
                file.write(part)
                left -= len(part)
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
handler = functools.partial(Handler, directory=sys.argv[3])
Server((sys.argv[1], int(sys.argv[2])), handler).serve_forever()
"#;

/// Python's `http.server.ThreadingHTTPServer`: a thread for each connection; takes uploads
/// by PUT. IPv4 only.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn python(scene: &Scene) -> Server {
    let root = site(scene);
    let script = scene.write("server.py", HTTP_SCRIPT);
    let address = scene.ipv4(SERVER_PORT);
    let (ip, port) = (address.ip().to_string(), SERVER_PORT.to_string());
    let (script, root) = (script.to_string_lossy(), root.to_string_lossy());
    // The system's own: launchers of version managers would be the main process.
    let command = ["/usr/bin/python3", "-u", &script, &ip, &port, &root];
    Server::new("python", vec![address], &command)
}

/// Sends each client, at 2 MB a second, over a million bytes, the length of the excess, and consecutive numbers.
const DIVERGING_SCRIPT: &str = r#"
import os, socket, sys, threading, time
with open(sys.argv[3], "a") as lives:
    lives.write("x")
more = 100 + os.stat(sys.argv[3]).st_size
def serve(client):
    said = b"x" * (1000000 + more) + b"<%03d>" % more + b"".join(b"%08d" % i for i in range(500000))
    try:
        for at in range(0, len(said), 20000):
            client.sendall(said[at:at + 20000])
            time.sleep(0.01)
    except OSError:
        pass
    client.close()
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    client, _ = listener.accept()
    threading.Thread(target=serve, args=(client,), daemon=True).start()
"#;

const SECOND_THOUGHTS_SCRIPT: &str = r#"
import os, socket, sys, time
address, port, may_speak, has_spoken = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
is_first = not os.path.exists(has_spoken + ".once")
listener = socket.create_server((address, port))
one, _ = listener.accept()
one.recv(9)
while not is_first and not os.path.exists(may_speak):
    time.sleep(0.01)
one.sendall(b"the first" if is_first else b"another..")
for name in has_spoken + ".once", has_spoken: # whoever sees the last file may kill this life
    open(name, "w").close()
time.sleep(1000000)
"#;

/// A server for one client: answers the first nine bytes with nine bytes. IPv4 only.
///
/// The second incarnation waits for the first file, then sends another answer. The server creates the second file
/// after the answer.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn second_thoughts(scene: &Scene) -> (Server, PathBuf, PathBuf) {
    let script = scene.write("second.py", SECOND_THOUGHTS_SCRIPT);
    let address = scene.ipv4(SERVER_PORT);
    let (ip, port) = (address.ip().to_string(), SERVER_PORT.to_string());
    let [may_speak, has_spoken] =
        ["may-speak", "has-spoken"].map(|name| scene.directory().join(name));
    let words = [&script, &may_speak, &has_spoken].map(|path| path.to_string_lossy().into_owned());
    let [script, may, has] = &words;
    let command = ["/usr/bin/python3", "-u", script, &ip, &port, may, has];
    let server = Server::new("second", vec![address], &command);
    (server, may_speak, has_spoken)
}

/// A server whose long response has another length in each incarnation. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn diverging(scene: &Scene) -> Server {
    let script = scene.write("unlike.py", DIVERGING_SCRIPT);
    let address = scene.ipv4(SERVER_PORT);
    let (ip, port) = (address.ip().to_string(), SERVER_PORT.to_string());
    let lives = scene.write("lives", "");
    let (script, lives) = (script.to_string_lossy(), lives.to_string_lossy());
    let command = ["/usr/bin/python3", "-u", &script, &ip, &port, &lives];
    Server::new("unlike", vec![address], &command)
}

/// A stream of tokens as HTTP events (Server-Sent Events). A token holds the number of tokens sent to all clients,
/// the time, a random number, and the hash of all earlier tokens on the connection.
const STREAMER_SCRIPT: &str = r#"
import asyncio, hashlib, random, sys, time
said = 0
async def stream(reader, writer):
    global said
    head = await reader.readuntil(b"\r\n\r\n")
    left = int(head.split()[1].lstrip(b"/"))
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    sum = hashlib.sha256()
    for number in range(left):
        said += 1
        token = f"{number} {said} {time.time_ns()} {random.getrandbits(64)} {sum.hexdigest()}"
        sum.update(token.encode())
        writer.write(b"data: " + token.encode() + b"\n\n")
        await writer.drain()
        await asyncio.sleep(random.random() / 100)
    await reader.read()
    writer.close()
async def main():
    server = await asyncio.start_server(stream, sys.argv[1], int(sys.argv[2]))
    await server.serve_forever()
asyncio.run(main())
"#;

/// A server of one thread that streams tokens at its own pace, by Python's asyncio: the response to `GET /N` is N
/// tokens. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn streamer(scene: &Scene) -> Server {
    by_script(
        scene,
        "streamer",
        STREAMER_SCRIPT,
        scene.ipv4(SERVER_PORT),
        &[],
    )
}

/// The end of a script that answers lines: `answer(connection, line)` is called for each.
pub(super) const LINE_LOOP_SCRIPT: &str = r#"
def read(connection):
    try:
        received = connection.recv(1 << 20)
    except ConnectionError:
        received = b""
    if not received:
        selector.unregister(connection)
        connection.close()
        return
    lines[connection] += received
    while b"\n" in lines[connection]:
        line, lines[connection] = lines[connection].split(b"\n", 1)
        answer(connection, line)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=100)
selector, lines = selectors.DefaultSelector(), {}
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            connection, _ = listener.accept()
            lines[connection] = b""
            selector.register(connection, selectors.EVENT_READ)
        else:
            read(key.fileobj)
"#;

/// Answers a line with a line.
///
/// `thing SIZE` makes an object, and prints the addresses of all objects; `ulp` asks for the kernel's TLS; `forget`
/// closes the file descriptors from 500 on; `note` writes into the file `notes` of the scene; `read` prints the
/// length of `notes`; `share` shares a resource at the path `shared` with other processes; `exit` ends the server.
/// The other words are ways to close the connection, after more bytes than the client takes at once.
const COMMAND_SCRIPT: &str = r#"
import os, selectors, socket, sys
class Mark:
    pass
answered, things, marks = 0, [], set()
nowhere = os.open("/dev/null", os.O_RDWR)
path = os.path.dirname(os.path.dirname(sys.argv[0])) + "/notes"
notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def answer(connection, line):
    global answered
    answered += 1
    word = line.decode().split()
    if word[0] == "count":
        connection.sendall(f"{answered}\n".encode())
    elif word[0] == "thing":
        things.append(bytes(int(word[1])))
        marks.add(Mark())
        said = [hex(id(one)) for one in [*things, *marks]]
        connection.sendall((" ".join(said) + "\n").encode())
    elif word[0] == "ulp":
        try:
            connection.setsockopt(socket.IPPROTO_TCP, 31, b"tls")
            connection.sendall(b"0\n")
        except OSError as error:
            connection.sendall(f"{error.errno}\n".encode())
    elif word[0] == "forget":
        os.closerange(500, 5000)
        connection.sendall(b"forgotten\n")
    elif word[0] == "note":
        os.write(notes, b"noted\n")
    elif word[0] == "read":
        with open(path, "rb") as file:
            connection.sendall(f"{len(file.read())}\n".encode())
    elif word[0] == "share":
        share(word[1], os.path.dirname(path) + "/shared")
        connection.sendall(b"shared\n")
    elif word[0] == "exit":
        os._exit(3)
    else:
        connection.setsockopt(socket.SOL_SOCKET, 32, 8 << 20) # SO_SNDBUFFORCE
        connection.sendall(b"x" * int(word[1]))
        selector.unregister(connection)
        fd = connection.detach()
        {"close": lambda: os.close(fd), "dup2": lambda: os.dup2(nowhere, fd),
         "dup3": lambda: os.dup2(nowhere, fd, False), "range": lambda: os.closerange(fd, fd + 1)}[word[0]]()
def share(what, path):
    import fcntl, mmap, threading
    if what == "socket":
        things.append(socket.socket(socket.AF_UNIX))
        things[-1].bind(path)
        things[-1].listen()
    elif what == "memory":
        file = os.open(path, os.O_RDWR)
        memory = mmap.mmap(file, 1)
        memory[0] += 1
        things.append(memory)
    elif what == "lock":
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
    elif what == "record":
        fcntl.lockf(os.open(path, os.O_WRONLY | os.O_APPEND), fcntl.LOCK_EX)
    elif what == "fifo":
        os.mkfifo(path)
        things.append(os.open(path, os.O_RDWR))
    elif what == "thread":
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        thread = threading.Thread(target=lambda: os.write(file, b"once"))
        thread.start()
        thread.join()
"#;

/// A server in Python that executes commands. `python` runs the server. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn command_server(scene: &Scene, python: &str) -> Server {
    let script = scene.write(
        "words/words.py",
        format!("{COMMAND_SCRIPT}{LINE_LOOP_SCRIPT}"),
    );
    let address = scene.ipv4(SERVER_PORT);
    let (ip, port) = (address.ip().to_string(), SERVER_PORT.to_string());
    let command = [python, "-u", &script.to_string_lossy(), &ip, &port];
    Server::new("words", vec![address], &command)
}

/// Answers each line, an expression or a statement of Python, with the result. The character 1 separates lines of a
/// statement.
const INTERPRETER_SCRIPT: &str = r#"
import ctypes, os, select, selectors, signal, socket, sqlite3, struct, sys, tempfile, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.fopen.restype = libc.fdopen.restype = libc.freopen.restype = libc.mkdtemp.restype = ctypes.c_void_p
def evaluate(line):
    try:
        try:
            return eval(line, globals())
        except SyntaxError:
            exec(line, globals())
    except Exception as error:
        return error
def answer(connection, line):
    connection.sendall(repr(evaluate(line.decode().replace(chr(1), "\n"))).encode() + b"\n")
"#;

/// A server that executes any Python. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn interpreter(scene: &Scene) -> Server {
    interpreter_at(scene, scene.ipv4(SERVER_PORT))
}

/// The same, elsewhere.
///
/// # Panics
/// As [`interpreter`].
#[must_use]
pub fn interpreter_at(scene: &Scene, address: SocketAddr) -> Server {
    let script = format!("{INTERPRETER_SCRIPT}{LINE_LOOP_SCRIPT}");
    by_script(scene, "interpreter", &script, address, &[])
}

/// Answers each line with the line and a number, from a thread that sleeps before.
const SLEEPER_SCRIPT: &str = r#"
import asyncio, sys, time
count = 0
def work(word):
    global count
    time.sleep(0.005)
    count += 1
    return f"{word} {count}\n".encode()
async def serve(reader, writer):
    while line := await reader.readline():
        writer.write(await asyncio.to_thread(work, line.decode().strip()))
        await writer.drain()
async def main():
    server = await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2]))
    await server.serve_forever()
asyncio.run(main())
"#;

/// A server whose threads answer, by `asyncio`. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn sleeper(scene: &Scene) -> Server {
    by_script(
        scene,
        "sleeper",
        SLEEPER_SCRIPT,
        scene.ipv4(SERVER_PORT),
        &[],
    )
}

/// A chat room: each message goes to all clients with a number, after a random greeting to each client. `wss` if
/// there is a certificate.
const CHAT_SCRIPT: &str = r#"
import asyncio, secrets, ssl, sys, websockets
spoken, everybody = 0, set()
async def serve(socket):
    global spoken
    everybody.add(socket)
    try:
        await socket.send(f"welcome {secrets.token_hex(8)}")
        async for message in socket:
            spoken += 1
            websockets.broadcast(everybody, f"{spoken} {message}")
    finally:
        everybody.discard(socket)
async def main():
    context = None
    if len(sys.argv) > 3:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[3], sys.argv[4])
    async with websockets.serve(serve, sys.argv[1], int(sys.argv[2]), ssl=context, ping_interval=0.2, ping_timeout=120):
        await asyncio.Future()
asyncio.run(main())
"#;

/// A server of `WebSockets` in Python, with TLS if `authority` is given. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn chat_server(scene: &Scene, authority: Option<&Authority>) -> Server {
    let files = authority.map(|authority| [&authority.certificate, &authority.key]);
    let files: Vec<_> = files
        .iter()
        .flatten()
        .map(|path| path.to_string_lossy())
        .collect();
    let files: Vec<&str> = files.iter().map(|path| &**path).collect();
    by_script(scene, "room", CHAT_SCRIPT, scene.ipv4(SERVER_PORT), &files)
}

/// A child for each connection answers a number N with a line and N bytes, and crashes at `abort`.
///
/// The line holds the number of earlier connections, the number of answers on this connection, both process ids, the
/// time, a random number, and the hash of all lines before. `refused` names an action of a child that a replay cannot
/// rebuild.
const FORKING_SCRIPT: &str = r#"
import hashlib, mmap, os, random, socket, sys, time
refused = sys.argv[3]
ends = os.pipe() if refused == "pipe" else None
memory = mmap.mmap(-1, 4096) if refused == "memory" else None
def serve(connection, number):
    answered, sum = 0, hashlib.sha256()
    for line in connection.makefile("rb"):
        answered += 1
        if line == b"abort\n":
            os.abort()
        if refused == "pipe":
            os.write(ends[1], line)
        words = [number, answered, os.getpid(), os.getppid(), time.time_ns(), random.getrandbits(64), sum.hexdigest()]
        said = (" ".join(map(str, words)) + "\n").encode()
        sum.update(said)
        connection.sendall(said + b"x" * int(line))
    connection.close()
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=100)
accepted, children = 0, set()
while True:
    connection, _ = listener.accept()
    child = os.fork()
    if child == 0:
        listener.close()
        serve(connection, accepted)
        os._exit(0)
    if refused == "both":
        connection.send(b"parent\n")
    children.add(child)
    accepted += 1
    connection.close()
    while children:
        ended, _ = os.waitpid(-1, os.WNOHANG)
        if ended == 0:
            break
        children.remove(ended)
"#;

/// A server with a process for each connection, in Python. `refused` names an action that a replay cannot rebuild:
/// `pipe`, `memory`, `both` or `nothing`. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
/// When its script cannot be written.
#[must_use]
pub fn forking(scene: &Scene, refused: &str) -> Server {
    forking_at(scene, scene.ipv4(SERVER_PORT), refused)
}

/// [`forking`] at another address.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn forking_at(scene: &Scene, address: SocketAddr, refused: &str) -> Server {
    by_script(scene, "forking", FORKING_SCRIPT, address, &[refused])
}

/// Answers each byte with a point. At `!`, closes the connection and leaves later bytes unread.
const UNREAD_CLOSE_SCRIPT: &str = r#"
import selectors, socket, sys, time
ready = selectors.DefaultSelector()
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
ready.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in ready.select():
        if key.fileobj is listener:
            ready.register(listener.accept()[0], selectors.EVENT_READ)
            continue
        byte = key.fileobj.recv(1)
        if byte in (b"", b"!"):
            ready.unregister(key.fileobj)
            time.sleep(0.2)  # for the kernel to acknowledge it
            key.fileobj.close()
        else:
            key.fileobj.send(b".")
"#;

/// A server that closes connections with unread bytes. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn unread_close(scene: &Scene) -> Server {
    by_script(
        scene,
        "rude",
        UNREAD_CLOSE_SCRIPT,
        scene.ipv4(SERVER_PORT),
        &[],
    )
}

/// A server of this name: a script in a directory of its own, with the address, the port and `more` as arguments.
fn by_script(
    scene: &Scene,
    name: &'static str,
    script: &str,
    address: SocketAddr,
    more: &[&str],
) -> Server {
    let script = scene.write(&format!("{name}/{name}.py"), script);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let script = script.to_string_lossy();
    // The system's own: launchers of version managers would be the main process.
    let command = ["/usr/bin/python3", "-u", &script, &ip, &port];
    Server::new(name, vec![address], &[&command[..], more].concat())
}

/// Answers each line: `long` with much, of which eight bytes differ in each life, and never comes to the end of that;
/// anything else shortly.
const CHANGING_SCRIPT: &str = r#"
import os, signal, socketserver, sys
class Session(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            if line.strip() == b"long":
                self.wfile.write(b"-" * 200000 + random + b"-" * 100000)
                signal.sigwait([signal.SIGUSR1])
            else:
                self.wfile.write(b"250 OK\r\n")
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    def handle_error(self, request, client_address):
        pass
random = os.urandom(8)
Server((sys.argv[1], int(sys.argv[2])), Session).serve_forever()
"#;

/// A server with a long response: 300,008 bytes at once and no more later. Eight bytes, at the offset 200,000, differ
/// in each incarnation. The short response is always the same. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn changing(scene: &Scene) -> Server {
    by_script(
        scene,
        "changing",
        CHANGING_SCRIPT,
        scene.ipv4(SERVER_PORT),
        &[],
    )
}

/// Sends a number of fixed bytes and a greeting, then appends each line to a file and answers the line. Each
/// connection has a thread.
const GREETER_SCRIPT: &str = r#"
import os, random, socketserver, sys
class Session(socketserver.StreamRequestHandler):
    def handle(self):
        greeting = sys.argv[4] or "%020d" % random.getrandbits(64)
        self.wfile.write(b"-" * int(sys.argv[5]) + b"220 session " + greeting.encode() + b"\r\n")
        for line in self.rfile:
            os.write(executed, line)
            self.wfile.write(b"250 OK\r\n")
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    # What it would print comes in the middle of a line of serve.
    def handle_error(self, request, client_address):
        pass
executed = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
Server((sys.argv[1], int(sys.argv[2])), Session).serve_forever()
"#;

/// A server as for mail: greets a client with `greeting`, or with a random greeting if `greeting` is empty. Each line
/// from the client is a command; the server appends each executed command to the file `executed` of the scene. IPv4
/// only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn greeter(scene: &Scene, greeting: &str) -> Server {
    greeter_behind(scene, greeting, 0)
}

/// [`greeter`] with a greeting after `bytes` fixed bytes.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn greeter_behind(scene: &Scene, greeting: &str, bytes: usize) -> Server {
    let executed = scene.directory().join("executed");
    let executed = executed.to_string_lossy();
    let more = [&*executed, greeting, &bytes.to_string()];
    by_script(
        scene,
        "greeter",
        GREETER_SCRIPT,
        scene.ipv4(SERVER_PORT),
        &more,
    )
}

/// Answers of 3,000 bytes in two pieces, each with the time in nanoseconds as its date.
const DATED_SCRIPT: &str = r#"
import socket, sys, threading, time
def serve(client):
    with client, client.makefile("rb") as words:
        for line in words:
            if line == b"\r\n":
                head = f"HTTP/1.1 200 OK\r\nDate: {time.time_ns()}\r\nContent-Length: 3000\r\n\r\n"
                client.sendall(head.encode() + b"x" * 2000)
                time.sleep(0.05)
                client.sendall(b"y" * 1000)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    client, _ = listener.accept()
    threading.Thread(target=serve, args=(client,), daemon=True).start()
"#;

/// An HTTP server without state whose dates are never the same. The first piece of an answer is longer than a segment,
/// and an answer is shorter than a recorded head. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn dated(scene: &Scene) -> Server {
    by_script(scene, "dated", DATED_SCRIPT, scene.ipv4(SERVER_PORT), &[])
}
