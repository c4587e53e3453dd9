//! Threads other than the main thread: a thread that serves clients is detected before the first output; all other
//! work of threads is allowed.

use std::{io::Read as _, net::TcpStream};

use e2e::{
    Scene,
    exchange::assert_all_recovered,
    servers::{SERVER_PORT, interpreter},
};

use lab::Signal;

use super::{
    STATEFUL_REQUIRE, await_condition,
    command_server::Client,
    rare_calls::{built, kill, run},
    refusals::serve,
};

/// A server whose first thread only waits. `HOW` names an additional action of the answering thread.
const THREAD_SCRIPT: &str = r#"
import socket, sys, threading
how, where = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
def listen():
    listener.bind(where)
    listener.listen(16)
def serve():
    if how == "listens":
        listen()
    if how == "polls":
        listener.settimeout(1000)
    while True:
        client, _ = listener.accept()
        client.sendall(b"hello\n")
if how != "listens":
    listen()
thread = threading.Thread(target=serve)
thread.start()
thread.join()
"#;

/// The message of `serve` about such a server without a client.
fn refused(how: &str) -> String {
    let scene = Scene::new(how);
    let script = scene
        .write("behind.py", THREAD_SCRIPT)
        .to_string_lossy()
        .into_owned();
    let address = scene.ipv4(SERVER_PORT);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let output = serve(&scene, &[], &["/usr/bin/python3", &script, how, &ip, &port]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("a thread other than the first"), "{said}");
    assert!(said.contains("python3 cannot be rebuilt"), "{said}");
    assert!(said.contains("from one thread"), "{said}");
    said
}

/// A runtime whose first thread only waits.
#[test]
fn second_thread_that_listens_is_refused() {
    assert!(refused("listens").contains("calls listen where clients connect"));
}

#[test]
fn second_thread_that_accepts_is_refused() {
    assert!(refused("accepts").contains("calls accept where clients connect"));
}

#[test]
fn second_thread_that_polls_clients_is_refused() {
    assert!(refused("polls").contains("calls poll where clients connect"));
}

/// A listener, and an epoll instance in which another thread waits. `FIRST` says whether that thread waits before the
/// listener exists.
const POLLER_PROGRAM: &str = r#"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
struct one { long ready; int fd; };
static int instance;
static void *help(void *nothing) {
    struct epoll_event event;
    for (;;)
        if (epoll_wait(instance, &event, 1, -1) == 1)
            ((struct one *)event.data.ptr)->ready++;
    return nothing;
}
int main(int count, char **words) {
    int on = 1, is_first = *words[1] == 'f';
    pthread_t thread;
    struct one *one = calloc(1, sizeof *one);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(words[3])) };
    inet_pton(AF_INET, words[2], &at.sin_addr);
    instance = epoll_create1(0);
    if (is_first) {
        pthread_create(&thread, 0, help, 0);
        usleep(300000);
    }
    one->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(one->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = one };
    if (bind(one->fd, (void *)&at, sizeof at) || listen(one->fd, 16))
        return 1;
    epoll_ctl(instance, EPOLL_CTL_ADD, one->fd, &event);
    if (!is_first)
        pthread_create(&thread, 0, help, 0);
    pthread_join(thread, 0);
    return 0;
}
"#;

/// As in gRPC, with the listener of the main thread.
#[test]
fn second_thread_with_client_epoll_is_refused() {
    for order in ["last", "first"] {
        let scene = Scene::new(order);
        let program = built(&scene, "poller", POLLER_PROGRAM);
        let address = scene.ipv4(SERVER_PORT);
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let output = serve(&scene, &[], &[&program, order, &ip, &port]);
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = "a thread other than the first calls epoll_wait where clients connect";
        assert!(said.contains(expected), "{said}");
    }
}

/// Answers each word with the epoll data that another thread got for a pipe, which the first thread had registered.
const EPOLL_DATA_PROGRAM: &str = r#"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
static int instance;
static void *help(void *data) {
    struct epoll_event event = { .data.u64 = 0 };
    if (epoll_wait(instance, &event, 1, -1) == 1)
        *(unsigned long *)data = event.data.u64;
    return data;
}
int main(int count, char **words) {
    int on = 1, ends[2], fd = socket(AF_INET, SOCK_STREAM, 0);
    unsigned long data = 0;
    pthread_t thread;
    char room[100];
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(words[2])) };
    inet_pton(AF_INET, words[1], &at.sin_addr);
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = 0x123456789a };
    instance = epoll_create1(0);
    if (pipe(ends) || epoll_ctl(instance, EPOLL_CTL_ADD, ends[0], &event) || write(ends[1], "x", 1) != 1)
        return 1;
    pthread_create(&thread, 0, help, &data);
    pthread_join(thread, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 16))
        return 1;
    int client = accept(fd, 0, 0);
    while (read(client, room, sizeof room) > 0) {
        int length = snprintf(room, sizeof room, "%lx\n", data);
        if (write(client, room, length) != length)
            return 1;
    }
    return 0;
}
"#;

/// A number of ours in place of a program's pointer killed gRPC (SIGSEGV).
#[test]
fn second_thread_gets_epoll_data_of_first() {
    let scene = Scene::new("data");
    let program = built(&scene, "data", EPOLL_DATA_PROGRAM);
    let mut server = interpreter(&scene);
    let address = scene.ipv4(SERVER_PORT);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    server.command = vec![program, ip, port];
    let server = scene.protect_with(&server, &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    for round in 1..=2 {
        assert_eq!(client.ask("what"), "123456789a");
        kill(&server, round);
    }
    assert_eq!(client.ask("what"), "123456789a");
    assert_all_recovered(&server);
}

/// Another thread waits in an epoll instance that reports a closed descriptor again and again: a copy is open.
const EPOLL_CLOSE_PROGRAM: &str = r#"
ends, watching, told = os.pipe(), select.epoll(), []
watching.register(ends[0], select.EPOLLIN)
copy = os.dup(ends[0])
os.close(ends[0])
os.write(ends[1], b"x")
thread = threading.Thread(target=lambda: told.append(watching.poll(0.05)))
thread.start()
thread.join()
"#;

#[test]
fn second_thread_epoll_timeout_is_kept() {
    let scene = Scene::new("closed");
    let server = scene.protect_with(&interpreter(&scene), &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    run(&mut client, EPOLL_CLOSE_PROGRAM);
    assert_eq!(client.ask("told"), "[[]]");
    kill(&server, 1);
    assert_eq!(client.ask("told"), "[[]]");
    assert_all_recovered(&server);
}

/// Sends a page to each client of another port.
const PAGE_PROGRAM: &str = r#"
def pages():
    while True:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.poll()
        other, _ = listener.accept()
        other.sendall(b"page\n")
        other.close()
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
"#;

/// A thread with clients at an address outside the service is allowed.
#[test]
fn second_thread_may_serve_other_port() {
    for listens in ["first", "other"] {
        let scene = Scene::new(listens);
        let server = scene.protect_with(&interpreter(&scene), &STATEFUL_REQUIRE);
        let mut client = Client::new(&scene);
        run(&mut client, PAGE_PROGRAM);
        let port = SERVER_PORT + 1;
        let listen = format!(
            "listener.bind(('{}', {port})), listener.listen()",
            scene.ipv4(0).ip()
        );
        let lines = match listens {
            "first" => format!("{listen}\nthreading.Thread(target=pages, daemon=True).start()"),
            _ => {
                format!("threading.Thread(target=lambda: ({listen}, pages()), daemon=True).start()")
            }
        };
        run(&mut client, &lines);
        for round in 1..=2 {
            let mut page = String::new();
            await_condition("it listens there, too", || {
                let other = scene.client.enter(|| TcpStream::connect(scene.ipv4(port)));
                let other = other.expect("a host").ok();
                other.is_some_and(|mut other| other.read_to_string(&mut page).is_ok())
            });
            assert_eq!(page, "page\n");
            assert_eq!(client.ask("6 * 7"), "42");
            kill(&server, round);
        }
        assert_eq!(client.ask("6 * 7"), "42");
        assert_all_recovered(&server);
    }
}

/// Where a record is only preferred such a server is as well off as with none.
#[test]
fn second_thread_keeps_clients_with_prefer() {
    for how in ["listens", "accepts", "polls"] {
        let scene = Scene::new(how);
        let script = scene.write("behind.py", THREAD_SCRIPT);
        let script = script.to_string_lossy().into_owned();
        let mut server = interpreter(&scene);
        let address = scene.ipv4(SERVER_PORT);
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        server.command = ["/usr/bin/python3", &script, how, &ip, &port]
            .map(str::to_owned)
            .to_vec();
        let server = scene.protect_with(&server, &["--stateful=prefer"]);
        let trouble = server.wait_for("warning", 1)["message"].to_string();
        assert!(trouble.contains("cannot be rebuilt"), "{trouble}");
        let mut client = Client::new(&scene);
        assert_eq!(client.receive(), "hello");
        // If the server had listened before the detection, that was a recovery, too.
        let recoveries = server.events_of("serving").len();
        server.kill_main(Signal::KILL);
        server.wait_serving(recoveries + 1);
        let mut other = Client::new(&scene);
        assert_eq!(other.receive(), "hello");
        server.assert_none_of("connection_reset");
    }
}
