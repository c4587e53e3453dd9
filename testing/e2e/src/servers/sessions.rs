//! Servers in Python with several processes in each session.

use std::net::SocketAddr;

use super::Server;
use crate::Scene;

/// Each session has a process that is asked, and two, one after another, that talk to its client: the first until it
/// has said its name, the second from then on. What is asked is how many questions there were, and a random number.
/// `refused`: what is not done alike in each life; if it is the path of a file, the next process that is begun removes
/// it, and dies of SIGKILL before it is at work.
const SESSIONS_SCRIPT: &str = r#"
import ctypes, hashlib, os, random, signal, socket, struct, sys
refused = sys.argv[3]
def line_of(connection):
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            os._exit(0)
        line += byte
    return line
def greet(connection, asked):
    connection.sendall(b"who?\n")
    asked.sendall(line_of(connection))
    connection.sendall(line_of(asked))
    while refused == "both":
        line_of(connection)
    os._exit(0)
def talk(connection, asked, name):
    sum = hashlib.sha256()
    while True:
        size = int(line_of(connection))
        asked.sendall(b"%d %s" % (size, b"x" * size))
        told = line_of(asked).strip()
        words = [name, str(os.getpid()).encode(), told, sum.hexdigest().encode()]
        said = b" ".join(words) + b"\n"
        sum.update(said)
        connection.sendall(said)
def exactly(asked, size):
    data = b""
    while len(data) < size:
        more = asked.recv(size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data
def answer(asked):
    count = 0
    while True:
        size = b""
        while not size.endswith(b" "):
            size += exactly(asked, 1)
        assert exactly(asked, int(size)) == b"x" * int(size)
        count += 1
        asked.sendall(b"%d %d\n" % (count, random.getrandbits(64)))
def session(connection):
    asked, asks = socket.socketpair()
    if os.fork() == 0:
        asked.close()
        greet(connection, asks)
    asks.close()
    name = line_of(asked).strip()
    asked.sendall(b"hello %s\n" % name)
    if refused != "both":
        os.wait()
    asked.close()
    asked, asks = socket.socketpair()
    if os.fork() == 0:
        asked.close()
        talk(connection, asks, name)
    asks.close()
    answer(asked)
def killed_as_it_begins():
    try:
        os.unlink(refused)
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
if refused.startswith("/"):
    # The C library's own, before fork returns.
    in_child = ctypes.CFUNCTYPE(None)(killed_as_it_begins)
    ctypes.CDLL(None).__register_atfork(None, None, in_child, None)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=100)
while True:
    connection, _ = listener.accept()
    if os.fork() == 0:
        listener.close()
        session(connection)
    connection.close()
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"#;

/// A server in Python with three processes for each session, which talk to each other: two serve its client, one after
/// another; with `both` as `refused` at once; with the path of a file one is killed as it begins when that is there;
/// else `nothing`. IPv4 only.
///
/// # Panics
/// When its script cannot be written.
#[must_use]
pub fn sessions_at(scene: &Scene, address: SocketAddr, refused: &str) -> Server {
    let script = scene.write("sessions/sessions.py", SESSIONS_SCRIPT);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let script = script.to_string_lossy();
    let command = ["/usr/bin/python3", "-u", &script, &ip, &port, refused];
    Server::new("sessions", vec![address], &command)
}

/// Each session has a process that accepts connections for data, and one that serves its client, and is passed them:
/// when it is told to, so that one can be on its way for long.
const PASSING_SCRIPT: &str = r#"
import os, socket, sys
ip, port = sys.argv[1], int(sys.argv[2])
def line_of(connection):
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            os._exit(0)
        line += byte
    return line
def accept(way, told):
    listener = socket.create_server((ip, port + 1))
    while True:
        word = line_of(way)
        way.sendall(b"listens\n")
        data, _ = listener.accept()
        socket.send_fds(way, [b"1"], [data.fileno()])
        data.close()
        told.sendall(b"sent\n")
        if word == b"last\n":
            os._exit(0)
def serve(client, way, told):
    data = None
    while True:
        word = line_of(client)
        if word in (b"open\n", b"last\n"):
            way.sendall(word)
            client.sendall(line_of(way))
            client.sendall(line_of(told))
        elif word == b"take\n":
            _, (data,), _, _ = socket.recv_fds(way, 1, 1)
            data = socket.socket(fileno=data)
            data.sendall(b"hello\n")
        elif word == b"close\n":
            data.close()
        else:
            data.sendall(line_of(data))
            client.sendall(word)
listener = socket.create_server((ip, port))
while True:
    client, _ = listener.accept()
    if os.fork() == 0:
        listener.close()
        way, asks = socket.socketpair()
        told, tells = socket.socketpair()
        if os.fork() == 0:
            asks.close()
            tells.close()
            serve(client, way, told)
        way.close()
        told.close()
        accept(asks, tells)
    client.close()
"#;

/// A server in Python of which a process accepts the connections that another one serves, at the next port. IPv4 only.
///
/// # Panics
/// When its script cannot be written.
#[must_use]
pub fn passing(scene: &Scene, address: SocketAddr) -> Server {
    let script = scene.write("passing/passing.py", PASSING_SCRIPT);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let script = script.to_string_lossy();
    let command = ["/usr/bin/python3", "-u", &script, &ip, &port];
    Server::new("passing", vec![address], &command)
}

/// It serves its clients itself, and has others at work: `fork` begins a process that begins one more, `run` one that
/// hears from a program what that has to say. What is told is told back.
const WORKING_SCRIPT: &str = r#"
import os, select, socket, subprocess, sys, time
def work():
    while True:
        time.sleep(0.05)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=100)
clients = {}
while True:
    for ready in select.select([listener, *clients], [], [])[0]:
        if ready is listener:
            client, _ = listener.accept()
            clients[client] = client.makefile("rb")
            continue
        line = clients[ready].readline()
        if not line:
            del clients[ready]
            ready.close()
            continue
        if line == b"fork\n" and os.fork() == 0:
            os.fork()
            work()
        if line == b"run\n" and os.fork() == 0:
            heard = subprocess.run(["/bin/echo", "heard"], capture_output=True)
            assert heard.stdout == b"heard\n"
            work()
        ready.sendall(line)
"#;

/// A server in Python that serves its clients itself, and begins processes that have none. IPv4 only.
///
/// # Panics
/// When its script cannot be written.
#[must_use]
pub fn working(scene: &Scene, address: SocketAddr) -> Server {
    let script = scene.write("working/working.py", WORKING_SCRIPT);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let script = script.to_string_lossy();
    Server::new(
        "working",
        vec![address],
        &["/usr/bin/python3", "-u", &script, &ip, &port],
    )
}
