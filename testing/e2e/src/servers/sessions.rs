//! Servers in Python with several processes in each session.

use std::net::SocketAddr;

use super::Server;
use crate::Scene;

/// A session has three processes. The session process answers questions; two others serve the client in turn: the
/// first until the client has sent a name, the second from then on.
///
/// An answer is the number of questions and a random number. `refused` names an action that differs in each
/// incarnation. If `refused` is the path of a file, the next new process removes the file, and dies of SIGKILL before
/// any work.
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

/// A server in Python with three processes for each session, connected by sockets: two serve the client, in turn.
/// IPv4 only.
///
/// `refused`: `both` for two processes that serve the client at the same time; the path of a file to kill a new
/// process when the file exists; else `nothing`.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn sessions_at(scene: &Scene, address: SocketAddr, refused: &str) -> Server {
    let script = scene.write("sessions/sessions.py", SESSIONS_SCRIPT);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let script = script.to_string_lossy();
    let command = ["/usr/bin/python3", "-u", &script, &ip, &port, refused];
    Server::new("sessions", vec![address], &command)
}

/// A session has two processes: one accepts data connections and passes them to the other, which serves the client.
/// The server process takes a connection on the client's request: a connection can be in flight for long.
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

/// A server in Python: a process accepts connections at the next port, and another process serves them. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn passing(scene: &Scene, address: SocketAddr) -> Server {
    let script = scene.write("passing/passing.py", PASSING_SCRIPT);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let script = script.to_string_lossy();
    let command = ["/usr/bin/python3", "-u", &script, &ip, &port];
    Server::new("passing", vec![address], &command)
}

/// The main process serves the clients, and starts worker processes: `fork` starts a process that starts another,
/// `run` a process that reads the output of a program. Each line is echoed.
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

/// A server in Python whose main process serves the clients, and starts processes without clients. IPv4 only.
///
/// # Panics
/// When the script cannot be written.
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
