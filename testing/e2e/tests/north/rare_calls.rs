//! Calls that few servers make, by a Python interpreter that executes lines of the test.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use e2e::{
    Protected, Scene,
    exchange::assert_all_recovered,
    pair::{Pair, addresses},
    servers::{PASSIVE_PORTS, command_server, interpreter, interpreter_at},
};
use lab::{Output, Signal};

use super::{STATEFUL_REQUIRE, await_condition, command_server::Client};

fn protect(scene: &Scene) -> Protected {
    scene.protect_with(&interpreter(scene), &STATEFUL_REQUIRE)
}

pub(super) fn kill(server: &Protected, kill: usize) {
    server.kill_main(Signal::KILL);
    server.wait_serving(kill);
}

/// Runs some lines in the server.
#[track_caller]
pub(super) fn run(client: &mut Client, lines: &str) {
    let one = lines.trim().replace('\n', "\x01");
    assert_eq!(client.ask(&one), "None", "{lines}");
}

/// The kernel's answer about interfaces, and the port number in the answer.
const NETLINK_SCRIPT: &str = r#"
def links():
    link.send(struct.pack("=IHHII16x", 32, 18, 0x301, 7, 0))
    names, ends = [], False
    while not ends:
        said, at = link.recv(1 << 16), 0
        while at < len(said):
            length, kind, _, _, to = struct.unpack_from("=IHHII", said, at)
            assert to == link.getsockname()[0], "another one's"
            ends = kind == 3
            if kind == 16:
                names.append(struct.unpack_from("=i", said, at + 20)[0])
            at += (length + 3) & ~3
    return names, to
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
link.bind((0, 0))
"#;

/// Requests to the kernel, and the kernel's answers.
#[test]
fn netlink_responses_are_replayed() {
    let scene = Scene::new("netlink");
    let server = protect(&scene);
    let mut client = Client::new(&scene);
    run(&mut client, NETLINK_SCRIPT);
    let links = client.ask("links()");
    assert!(links.starts_with("([1"), "{links}");
    for round in 1..=3 {
        assert_eq!(client.ask("links()"), links);
        kill(&server, round);
        assert_eq!(client.ask("links()"), links);
    }
    assert_all_recovered(&server);
}

/// Listens where the kernel says, and tells where that is.
const LISTENER_SCRIPT: &str = r#"
def listens(*bound):
    listener = socket.socket()
    for address in bound:
        listener.bind(address)
    listener.listen()
    listeners.append(listener)
    return listener.getsockname()[1]
def takes(which):
    accepted.append(listeners[which].accept()[0])
    accepted[-1].sendall(b"hello\n")
listeners, accepted = [], []
"#;

/// Clients that were told of a port find the server there.
#[test]
fn kernel_chosen_port_is_kept() {
    let scene = Scene::new("anyport");
    let [first, last] = PASSIVE_PORTS;
    let range = format!("{first} {last}");
    let ranged = scene.server.sysctl("net.ipv4.ip_local_port_range", &range);
    ranged.expect("a kernel parameter");
    let range = format!("{}-{last}", scene.ipv4(first));
    let flags = [&STATEFUL_REQUIRE[..], &["--address", &range]].concat();
    let server = scene.protect_with(&interpreter(&scene), &flags);
    let mut client = Client::new(&scene);
    run(&mut client, LISTENER_SCRIPT);
    let bound = format!("listens(('{}', 0))", scene.ipv4(0).ip());
    let ports = [&*bound, "listens()"].map(|one| client.ask(one));
    assert_ne!(ports[0], ports[1]);
    let port = |which: usize| ports[which].parse().expect("a port");
    let connect = |client: &mut Client, which: usize| {
        let mut other = Client::at(scene.connect(port(which)));
        run(client, &format!("takes({which})"));
        assert_eq!(other.receive(), "hello");
        other
    };
    let mut early = [0, 1].map(|which| connect(&mut client, which));
    for round in 1..=2 {
        kill(&server, round);
        for which in [0, 1] {
            let port = client.ask(&format!("listeners[{which}].getsockname()[1]"));
            assert_eq!(port, ports[which]);
            assert_eq!(
                client.ask(&format!("accepted[{which}].send(b'more\\n')")),
                "5"
            );
            assert_eq!(early[which].receive(), "more");
            connect(&mut client, which);
        }
    }
    assert_all_recovered(&server);
}

const TAKES_ALL: &str = "
import socket, sys, time
taken = [socket.create_server((sys.argv[1], port)) for port in range(int(sys.argv[2]), int(sys.argv[3]) + 1)]
time.sleep(1000)
";

/// A port that another program has on the new host cannot be moved.
#[test]
fn taken_kernel_chosen_port_is_reported() {
    let ([address, _], [first, last]) = (addresses(), PASSIVE_PORTS);
    let mut pair = Pair::with("takenport", &[], &STATEFUL_REQUIRE, |scene| {
        let range = format!("{first} {last}");
        let ranged = scene.server.sysctl("net.ipv4.ip_local_port_range", &range);
        ranged.expect("a kernel parameter");
        interpreter_at(scene, address)
    });
    let mut client = Client::at(pair.scene.connect_to(address));
    run(&mut client, LISTENER_SCRIPT);
    client.ask("listens()");
    let other = pair.second.host();
    let mut takes = other.command("/usr/bin/python3");
    let ports = [first, last].map(|port| port.to_string());
    takes.args(["-c", TAKES_ALL, "0.0.0.0"]).args(ports);
    let taking = other.spawn(&mut takes, &Output::Null).expect("it starts");
    await_condition("they are taken", || {
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, last));
        other.enter(connect).expect("a host").is_ok()
    });
    pair.first.power_off();
    let told = pair.second.wait_for("warning", 1)["message"].to_string();
    assert!(told.contains("another program has the port"), "{told}");
    pair.second.wait_for("serving", 1);
    drop(taking);
    pair.change_places();
    pair.stop();
}

/// In a replay no process sends these signals.
const WAIT_SCRIPT: &str = r#"
def take(wait):
    os.kill(os.getpid(), signal.SIGUSR1)
    return wait()
def interrupted(wait):
    before = len(alarms)
    # Again and again: the first may come before the wait.
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    while len(alarms) == before:
        wait()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return True
def event():
    time, room = struct.pack("qq", 5, 0), ctypes.create_string_buffer(12)
    count = libc.epoll_pwait2(epoll.fileno(), room, 1, time, None)
    return count, struct.unpack("=IQ", room.raw)
alarms, none = [], ctypes.create_string_buffer(128)
signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def child():
    child = os.fork()
    if not child:
        os._exit(7)
    told = os.waitid(os.P_PID, child, os.WEXITED)
    return told.si_pid == child, told.si_signo, told.si_code, told.si_status
epoll, (output, input) = select.epoll(), os.pipe()
libc.epoll_ctl(epoll.fileno(), 1, output, struct.pack("=IQ", 1, 1 << 40))
os.write(input, b"x")
"#;

#[test]
fn completed_waits_are_replayed() {
    const WAIT_CALLS: [(&str, &str); 8] = [
        ("child()", "(True, 17, 1, 7)"),
        (
            "take(lambda: signal.sigwait([signal.SIGUSR1]).name)",
            "'SIGUSR1'",
        ),
        (
            "take(lambda: signal.sigwaitinfo([signal.SIGUSR1]).si_signo)",
            "10",
        ),
        (
            "take(lambda: signal.sigtimedwait([signal.SIGUSR1], 10).si_code)",
            "0",
        ),
        ("signal.sigtimedwait([signal.SIGUSR1], 0.01)", "None"),
        ("interrupted(signal.pause)", "True"),
        ("interrupted(lambda: libc.sigsuspend(none))", "True"),
        ("event()", "(1, (1, 1099511627776))"),
    ];
    let scene = Scene::new("waits");
    let server = protect(&scene);
    let mut client = Client::new(&scene);
    run(&mut client, WAIT_SCRIPT);
    for round in 1..=3 {
        for (expression, gives) in WAIT_CALLS {
            assert_eq!(client.ask(expression), gives, "{expression}");
        }
        let all = client.ask("len(alarms)");
        kill(&server, round);
        // The server's timers run in a replay, too.
        thread::sleep(Duration::from_millis(50));
        assert_eq!(client.ask("len(alarms)"), all);
    }
    assert_eq!(client.ask("event()"), WAIT_CALLS[7].1);
    assert_all_recovered(&server);
}

/// Opens a file, which a thread closes a while after the first word; answers each with how many there were.
const CLOSER_SCRIPT: &str = r#"
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static int file;
static void *closes(void *nothing) {
    usleep(300000);
    close(file);
    return nothing;
}
int main(int count, char **words) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(8080) };
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 16))
        return 1;
    file = open(words[1], O_RDONLY);
    int client = accept(fd, 0, 0), heard = 0;
    char room[100];
    while (read(client, room, sizeof room) > 0) {
        pthread_t thread;
        if (heard == 0)
            pthread_create(&thread, 0, closes, 0);
        snprintf(room, sizeof room, "%d\n", ++heard);
        write(client, room, strlen(room));
    }
}
"#;

/// Open files are compared at the end of a replay, except files that a thread is about to close.
#[test]
fn file_closed_by_thread_may_change() {
    let scene = Scene::new("threadcloses");
    let path = scene.write("changes", "what it was");
    let mut server = interpreter(&scene);
    server.command = vec![
        built(&scene, "closer", CLOSER_SCRIPT),
        path.display().to_string(),
    ];
    let server = scene.protect_with(&server, &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    assert_eq!(client.ask("close"), "1");
    append(&path, "and what is new");
    for round in 1..=3 {
        kill(&server, round);
        assert_eq!(client.ask("count"), (1 + round).to_string());
    }
    assert_all_recovered(&server);
}

/// A program in C.
pub(super) fn built(scene: &Scene, name: &str, source: &str) -> String {
    let source = scene.write(&format!("{name}.c"), source);
    let program = scene.directory().join(name);
    let built = std::process::Command::new("gcc")
        .args(["-pthread", "-o"])
        .args([&program, &source])
        .status();
    assert!(built.expect("gcc").success());
    program.display().to_string()
}

fn append(path: &Path, more: &str) {
    let file = fs::File::options().append(true).open(path);
    file.and_then(|mut file| file.write_all(more.as_bytes()))
        .expect("appended");
}

/// The server dies, and the test acts before the next life begins.
fn during_outage(server: &Protected, act: impl FnOnce()) {
    server.kill_serve(Signal::STOP);
    let about = format!("/proc/{}/stat", server.serve_pid());
    await_condition("serve has stopped", || {
        let about = fs::read_to_string(&about).expect("it is there");
        about
            .rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('T'))
    });
    server.kill_main(Signal::KILL);
    act();
    server.kill_serve(Signal::CONT);
}

/// A log is copied and truncated during an outage: the restart repeats only the pending append.
#[test]
fn log_file_may_be_truncated_before_replay() {
    let scene = Scene::new("copytruncate");
    let server = scene.protect_with(
        &command_server(&scene, "/usr/bin/python3"),
        &STATEFUL_REQUIRE,
    );
    let notes = scene.directory().join("notes");
    let length = || fs::metadata(&notes).expect("notes").len();
    let mut client = Client::new(&scene);
    assert_eq!(client.ask("count"), "1");
    for round in 1..=3 {
        let before = length();
        // The last line before the death: the server sends no answer.
        client.say("note");
        await_condition("it is noted", || length() == before + 6);
        during_outage(&server, || {
            fs::File::create(&notes).expect("cut off");
        });
        server.wait_serving(round);
        client.say("note");
        await_condition("it is noted where the file ends", || length() == 12);
    }
    assert_eq!(client.ask("count"), "8");
    assert_eq!(fs::read(&notes).expect("notes"), b"noted\nnoted\n");
    assert_all_recovered(&server);
}

/// Files, opened in every way: each time the server appends, and answers with the readable content.
const FILE_SCRIPT: &str = r#"
def stream(name, mode, text, then=None):
    file = ctypes.c_void_p(libc.fopen((where + name).encode(), mode))
    libc.fputs(text, file)
    if then:
        assert libc.freopen((where + then).encode(), b"w", file)
        libc.fputs(text * 2, file)
    libc.fclose(file)
def attached(name, text):
    file = ctypes.c_void_p(libc.fdopen(os.open(where + name, os.O_WRONLY | os.O_CREAT), b"a"))
    libc.fputs(text, file)
    libc.fclose(file)
def plain(name, flags, text):
    file = os.open(where + name, flags | os.O_CREAT)
    os.write(file, text)
    os.close(file)
def nameless(text):
    file = os.open(where, os.O_TMPFILE | os.O_RDWR)
    os.write(file, text)
    os.lseek(file, 0, 0)
    read = os.read(file, 100)
    os.close(file)
    return read
def work(number):
    text = b"%d\n" % number
    plain("once", os.O_WRONLY | os.O_TRUNC, text * 3)
    plain("once", os.O_WRONLY | os.O_APPEND, text)
    plain("log", os.O_WRONLY | os.O_APPEND, text)
    stream("first", b"w", text, "second")
    stream("appended", b"a", text)
    attached("attached", text)
    os.mkfifo(f"{where}fifo{number}")
    room = ctypes.create_string_buffer((where + "X" * 6).encode())
    assert libc.mkdtemp(room)
    plain(room.value.decode()[len(where):] + "/within", os.O_WRONLY, text)
    place = os.open(where + "inplace", os.O_RDWR | os.O_CREAT)
    before = os.pread(place, 100, 0)
    os.pwrite(place, before + text if number % 2 else text, 0)
    after = os.read(place, 100)
    os.close(place)
    data.execute("insert into counts values (?)", (number,))
    rows = data.execute("select * from counts").fetchall()
    return nameless(text), before, after, rows
data = sqlite3.connect(where + "data", isolation_level=None)
data.execute("create table if not exists counts (number)")
"#;

/// A server that works with the files of a directory.
fn works(scene: &Scene) -> (PathBuf, Protected, Client) {
    let directory = scene.directory().join("files");
    fs::create_dir_all(&directory).expect("a directory");
    let server = protect(scene);
    let mut client = Client::new(scene);
    run(&mut client, &format!("where = '{}/'", directory.display()));
    run(&mut client, FILE_SCRIPT);
    (directory, server, client)
}

/// Contents of a directory and the directories below; an empty content for entries that are no files.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.extend(contents(&path));
        }
        let bytes = match path.is_file() {
            true => fs::read(&path).expect("a file"),
            false => Vec::new(),
        };
        all.insert(path, bytes);
    }
    all
}

#[test]
fn files_are_unchanged_by_replay() {
    let scene = Scene::new("allfiles");
    let (directory, server, mut client) = works(&scene);
    for round in 1..=4 {
        let said = client.ask(&format!("work({round})"));
        assert!(said.starts_with("(b'"), "{said}");
        let rows: Vec<String> = (1..=round).map(|number| format!("({number},)")).collect();
        assert!(said.contains(&rows.join(", ")), "{said}");
        let before = contents(&directory);
        kill(&server, round);
        // The files are complete after an answer.
        assert_eq!(client.ask("1"), "1");
        assert!(contents(&directory) == before, "round {round}");
    }
    assert_all_recovered(&server);
}

/// Files that are gone are made again, and are the server's in the lives after that, too.
#[test]
fn recreated_files_stay() {
    let scene = Scene::new("remade");
    let (directory, server, mut client) = works(&scene);
    let mut kills = 0;
    for round in 1..=3 {
        let said = client.ask(&format!("work({round})"));
        assert!(said.starts_with("(b'"), "{said}");
        let before = contents(&directory);
        if round == 1 {
            for name in ["once", "log", "second", "appended", "attached", "inplace"] {
                fs::remove_file(directory.join(name)).expect("removed");
            }
        }
        for _ in 0..2 {
            kills += 1;
            kill(&server, kills);
            assert_eq!(client.ask("1"), "1");
            let after = contents(&directory);
            let paths = after.keys().chain(before.keys());
            let others: Vec<&PathBuf> = paths
                .filter(|one| after.get(*one) != before.get(*one))
                .collect();
            assert!(others.is_empty(), "round {round}: {others:?}");
        }
    }
    assert_all_recovered(&server);
}

/// A child inherits the parent's connections, and the parent's epoll instance. Only the parent decides about waiting,
/// in the next incarnation, too.
#[test]
fn unawaited_child_does_not_block() {
    const CHILD_SCRIPT: &str = r#"
other = list(lines)[1]
if not os.fork():
    while True:
        time.sleep(1)
"#;
    let scene = Scene::new("watched");
    let server = protect(&scene);
    let (mut client, mut other) = (Client::new(&scene), Client::new(&scene));
    assert_eq!(other.ask("1 + 1"), "2");
    run(&mut client, CHILD_SCRIPT);
    for round in 1..=3 {
        run(&mut client, "selector.unregister(other) and None");
        kill(&server, round);
        other.say("2 + 2");
        assert_eq!(client.ask("len(lines)"), "2");
        run(
            &mut client,
            "selector.register(other, selectors.EVENT_READ) and None",
        );
        assert_eq!(other.receive(), "4");
        assert_eq!(other.ask("3 + 3"), "6");
    }
    assert_all_recovered(&server);
}
