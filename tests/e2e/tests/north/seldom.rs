//! Calls that few servers make, by one that makes them when it is told to.

use std::{fs, io::Write as _, path::Path};

use e2e::{
    Protected, Scene,
    exchange::assert_all_kept,
    servers::{interpreter, words},
};
use lab::Signal;

use super::{REQUIRE, words::Client};

fn protect(scene: &Scene) -> Protected {
    scene.protect_with(&interpreter(scene), &REQUIRE)
}

fn kill(server: &Protected, kill: usize) {
    server.kill_main(Signal::KILL);
    server.wait_serving(kill);
}

/// Has it run some lines.
#[track_caller]
fn run(client: &mut Client, lines: &str) {
    let one = lines.trim().replace('\n', "\x01");
    assert_eq!(client.ask(&one), "None", "{lines}");
}

/// What the kernel says of its interfaces, and by which number it does.
const LINKS: &str = r#"
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

/// Requests to the kernel, and its answers.
#[test]
fn what_the_kernel_has_said_by_netlink_is_known() {
    let scene = Scene::new("netlink");
    let server = protect(&scene);
    let mut client = Client::new(&scene);
    run(&mut client, LINKS);
    let links = client.ask("links()");
    assert!(links.starts_with("([1"), "{links}");
    for round in 1..=3 {
        assert_eq!(client.ask("links()"), links);
        kill(&server, round);
        assert_eq!(client.ask("links()"), links);
    }
    assert_all_kept(&server);
}

/// In a replay nobody sends these signals.
const WAITS: &str = r#"
def take(wait):
    os.kill(os.getpid(), signal.SIGUSR1)
    return wait()
def interrupted(wait):
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    before = len(alarms)
    while len(alarms) == before:
        wait()
    return True
def event():
    time, room = struct.pack("qq", 5, 0), ctypes.create_string_buffer(12)
    count = libc.epoll_pwait2(epoll.fileno(), room, 1, time, None)
    return count, struct.unpack("=IQ", room.raw)
alarms, none = [], ctypes.create_string_buffer(128)
signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
epoll, (output, input) = select.epoll(), os.pipe()
libc.epoll_ctl(epoll.fileno(), 1, output, struct.pack("=IQ", 1, 1 << 40))
os.write(input, b"x")
"#;

#[test]
fn what_was_waited_for_has_come() {
    const EACH: [(&str, &str); 7] = [
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
    run(&mut client, WAITS);
    for round in 1..=3 {
        for (expression, gives) in EACH {
            assert_eq!(client.ask(expression), gives, "{expression}");
        }
        kill(&server, round);
    }
    assert_eq!(client.ask("event()"), EACH[6].1);
    assert_all_kept(&server);
}

/// Opens a file, which a thread closes a while after the first word; answers each with how many there were.
const CLOSER: &str = r#"
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

/// What is open is compared at the end of a replay, but not what a thread is about to close.
#[test]
fn a_file_that_a_thread_closes_may_have_changed() {
    let scene = Scene::new("threadcloses");
    let path = scene.write("changes", "what it was");
    let mut server = interpreter(&scene);
    server.command = vec![built(&scene, "closer", CLOSER), path.display().to_string()];
    let server = scene.protect_with(&server, &REQUIRE);
    let mut client = Client::new(&scene);
    assert_eq!(client.ask("close"), "1");
    append(&path, "and what is new");
    for round in 1..=3 {
        kill(&server, round);
        assert_eq!(client.ask("count"), (1 + round).to_string());
    }
    assert_all_kept(&server);
}

/// A program in C.
fn built(scene: &Scene, name: &str, source: &str) -> String {
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

/// A log that is copied and cut off while nobody serves: what was about to be appended is, and nothing else happens.
#[test]
fn a_log_may_be_cut_off_before_the_replay() {
    let scene = Scene::new("copytruncate");
    let server = scene.protect_with(&words(&scene, "/usr/bin/python3"), &REQUIRE);
    let notes = scene.directory().join("notes");
    let length = || fs::metadata(&notes).expect("notes").len();
    let mut client = Client::new(&scene);
    assert_eq!(client.ask("count"), "1");
    for round in 1..=3 {
        let before = length();
        // The last that it hears: it says nothing of it.
        client.say("note");
        super::patiently("it is noted", || length() == before + 6);
        server.kill_main(Signal::KILL);
        fs::File::create(&notes).expect("cut off");
        server.wait_serving(round);
        client.say("note");
        super::patiently("it is noted where the file ends", || length() == 12);
    }
    assert_eq!(client.ask("count"), "8");
    assert_eq!(fs::read(&notes).expect("notes"), b"noted\nnoted\n");
    assert_all_kept(&server);
}
