//! Calls that few servers make, by one that makes them when it is told to.

use e2e::{Protected, Scene, exchange::assert_all_kept, servers::interpreter};
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
