//! Foreign filters and programs on the server's host, and further services: unchanged beside `serve` and after
//! `serve`.

use e2e::arrange::{run, run_words, test_server_at, wait_until};
use e2e::clients::{read_exactly, write};
use e2e::exchange::{Exchange, assert_all_recovered, echoes, echoing, end};
use e2e::servers::{SERVER_PORT, test_server};
use e2e::{EVENT_TIMEOUT, Scene, Seed};
use lab::{Output, Signal};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

#[test]
fn clsact_attachment() {
    let scene = Scene::new("clsact");
    let server = scene.protect_with(&test_server(&scene), &["--attach", "clsact"]);
    let status = server.outlive("status", &["--json", server.name()]);
    assert!(
        status.json()[0]["interfaces"]
            .to_string()
            .contains("clsact"),
        "{status:?}"
    );
    let seed = &mut Seed::choose("clsact");
    Exchange::default().survives(&scene, &server, seed, || scene.connect(SERVER_PORT));
}

const LATE_FILTER: &str = "prio 7 handle 3 protocol all bpf da bytecode";
/// A place that a careless program would choose for its own filter.
const SAME_PRIORITY_FILTER: &str = "prio 1 handle 1 protocol all bpf da bytecode";

#[test]
fn foreign_filters_run_beside_tcx() {
    foreign_filter_survives("auto", LATE_FILTER);
    foreign_filter_survives("auto", SAME_PRIORITY_FILTER);
}

#[test]
fn foreign_filters_run_beside_clsact() {
    foreign_filter_survives("clsact", LATE_FILTER);
}

#[test]
fn foreign_filters_are_not_replaced() {
    foreign_filter_survives("clsact", SAME_PRIORITY_FILTER);
}

/// Foreign filters exist before, while and after `serve` runs. Clients notice no crash.
fn foreign_filter_survives(attach: &str, filter: &str) {
    let scene = Scene::new("filters");
    run(&scene.server, "tc qdisc add dev eth0 clsact");
    for direction in ["ingress", "egress"] {
        // A single instruction: return `TC_ACT_UNSPEC`.
        let mut words = vec!["tc", "filter", "add", "dev", "eth0", direction];
        words.extend(filter.split(' '));
        words.push("1,6 0 0 4294967295");
        run_words(&scene.server, &words);
    }
    let filters = || {
        ["ingress", "egress"].map(|direction| {
            run(
                &scene.server,
                &format!("tc filter show dev eth0 {direction}"),
            )
        })
    };
    let before = filters();
    {
        let server = scene.protect_with(&test_server(&scene), &["--attach", attach]);
        let during = filters();
        for (before, during) in before.iter().zip(&during) {
            let missing: Vec<_> = before
                .lines()
                .filter(|line| !during.contains(line))
                .collect();
            assert!(
                missing.is_empty(),
                "{attach}: {missing:#?} is not in {during}"
            );
        }
        let exchange = Exchange {
            download: 1 << 20,
            upload: 1 << 20,
            kills: 1,
            ..Exchange::default()
        };
        let seed = &mut Seed::choose("filters");
        exchange.survives(&scene, &server, seed, || scene.connect(SERVER_PORT));
    }
    assert_eq!(
        filters(),
        before,
        "{attach}: filters before and after serve"
    );
}

/// A foreign filter counts packets, and mirrors every packet to a device. The filter sees the same packets as the
/// server's TCP, before and after a crash.
#[test]
fn foreign_filter_sees_every_packet() {
    for attach in ["auto", "clsact"] {
        let scene = Scene::new("mirred");
        run(
            &scene.server,
            "ip link add mirror type veth peer name drain",
        );
        let to_client = format!("ip link set drain netns {}", scene.client.namespace());
        run(&scene.server, &to_client);
        run(&scene.server, "ip link set mirror up");
        run(&scene.client, "ip link set drain up");
        run(&scene.server, "tc qdisc add dev eth0 clsact");
        run(
            &scene.server,
            "tc filter add dev eth0 ingress prio 9 protocol ip u32 match u32 0 0 action mirred egress mirror dev mirror",
        );
        let server = scene.protect_with(
            &test_server_at(&scene, &[scene.ipv4(SERVER_PORT)]),
            &["--attach", attach],
        );
        let stream = scene.connect(SERVER_PORT);
        write(&stream, b"echo\n");
        for recoveries in 0..2 {
            let before = mirrored(&scene);
            for _ in 0..50 {
                write(&stream, b"x");
                assert_eq!(read_exactly(&stream, 1), b"x");
            }
            let seen = mirrored(&scene) - before;
            assert!(
                seen >= 50,
                "{attach}: it saw {seen} packets in life {recoveries}"
            );
            server.kill_main(Signal::KILL);
            server.wait_serving(recoveries + 1);
        }
        end(&stream);
        assert_all_recovered(&server);
    }
}

/// Packets that the device of the other's filter has sent.
fn mirrored(scene: &Scene) -> u64 {
    let path = "ip -s -j link show dev mirror";
    let output = run(&scene.server, path);
    let links: serde_json::Value = serde_json::from_str(&output).expect("JSON of ip");
    links[0]["stats64"]["tx"]["packets"]
        .as_u64()
        .expect("a counter")
}

/// The programs of each service are foreign to the other service.
#[test]
fn two_services_on_one_host() {
    let scene = Scene::new("two");
    let at = |port| scene.ipv4(port);
    let first = scene.protect(&test_server_at(&scene, &[at(SERVER_PORT)]));
    let second = scene.protect(&test_server_at(&scene, &[at(SERVER_PORT + 1)]));
    let other = scene.connect(SERVER_PORT + 1);
    write(&other, b"echo\nhello");
    assert_eq!(read_exactly(&other, 5), b"hello");
    let exchange = Exchange {
        download: 2 << 20,
        ..Exchange::default()
    };
    let seed = &mut Seed::choose("two");
    exchange.survives(&scene, &first, seed, || scene.connect(SERVER_PORT));
    first.stop();
    assert!(
        second.events_of("died").is_empty(),
        "a death of the other service was taken for its own"
    );
    second.kill_main(Signal::KILL);
    second.wait_serving(1);
    write(&other, b"again");
    assert_eq!(read_exactly(&other, 5), b"again");
    end(&other);
    assert_all_recovered(&second);
}

/// Services share settings of the network namespace. The first service to leave keeps the settings for the other
/// service; the last service restores the original values. Without `accept_local` on the loopback no injected packet
/// of a recovery would arrive there.
#[test]
fn last_service_restores_settings() {
    let scene = Scene::new("settings");
    let trips = "net.ipv4.tcp_min_rtt_wlen";
    let read = || {
        run(
            &scene.server,
            &format!("sysctl -n {trips} net.ipv4.conf.lo.accept_local"),
        )
    };
    scene
        .server
        .sysctl(trips, "123")
        .expect("a kernel parameter");
    let before = read();
    assert_eq!(before, "123\n0\n");
    let here = |port| [SocketAddr::from((Ipv4Addr::LOCALHOST, port))];
    let first = scene.protect(&test_server_at(&scene, &here(SERVER_PORT)));
    let second = scene.protect(&test_server_at(&scene, &here(SERVER_PORT + 1)));
    let [address] = here(SERVER_PORT + 1);
    let stream = scene.server.enter(|| TcpStream::connect(address));
    let stream = stream.expect("it is on").expect("a connection");
    stream
        .set_read_timeout(Some(EVENT_TIMEOUT))
        .expect("a timeout");
    write(&stream, b"echo\n");
    echoes(&stream, b"one");

    first.stop();
    assert_eq!(read(), "0\n1\n");
    second.kill_main(Signal::KILL);
    second.wait_serving(1);
    echoes(&stream, b"two");

    // Another program may change the settings meanwhile, without knowledge of the services.
    scene
        .server
        .sysctl("net.ipv4.conf.lo.accept_local", "0")
        .expect("a kernel parameter");
    second.kill_main(Signal::KILL);
    second.wait_serving(2);
    echoes(&stream, b"three");
    end(&stream);
    assert_all_recovered(&second);
    second.stop();
    assert_eq!(read(), before);
}

/// A process sends from memory whose page fault never ends (userfaultfd), and the kernel keeps the socket locked for
/// that long. A dump of all sockets of the namespace, as after a recovery, waits for the lock; the service does not
/// wait.
#[test]
fn permanently_locked_socket() {
    let scene = Scene::new("locked");
    let server = scene.protect(&test_server(&scene));
    let stream = echoing(&scene);
    let script = scene.write("locked.py", LOCKS_A_SOCKET);
    let log = scene.directory().join("locked.log");
    let output = Output::Files {
        stdout: log.clone(),
        stderr: log.with_extension("err"),
    };
    let mut command = scene.server.command("/usr/bin/python3");
    let other = scene
        .server
        .spawn(command.arg(&script), &output)
        .expect("python3");
    wait_until("it sends", || {
        let sends = std::fs::read_to_string(&log).unwrap_or_default();
        let sends: Option<i32> = sends.trim().parse().ok();
        sends.is_some_and(|thread| {
            let at = std::fs::read_to_string(format!("/proc/{thread}/wchan"));
            at.is_ok_and(|at| at.contains("userfault"))
        })
    });
    for recoveries in 1..=3 {
        server.kill_main(Signal::KILL);
        server.wait_serving(recoveries);
        echoes(&stream, b"goes on");
    }
    let status = server.outlive("status", &["--json", server.name()]);
    assert_eq!(status.status, Some(0), "{status:?}");
    drop(other);
    end(&stream);
    assert_all_recovered(&server);
}

/// Says the number of the thread that sends.
const LOCKS_A_SOCKET: &str = r#"
import ctypes, fcntl, mmap, os, socket, struct, threading, time
UFFDIO_API, UFFDIO_REGISTER = 0xc018aa3f, 0xc020aa00
fault = ctypes.CDLL(None, use_errno=True).syscall(323, os.O_CLOEXEC)  # userfaultfd
assert fault >= 0, os.strerror(ctypes.get_errno())
fcntl.ioctl(fault, UFFDIO_API, struct.pack("QQQ", 0xaa, 0, 0))
memory = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
fcntl.ioctl(fault, UFFDIO_REGISTER, struct.pack("QQQQ", address, 4096, 1, 0))  # what is missing
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
def sends():
    print(threading.get_native_id(), flush=True)
    ctypes.CDLL(None).send(one.fileno(), ctypes.c_void_p(address), 100, 0)
threading.Thread(target=sends).start()
time.sleep(1000000)
"#;

/// A waiting `serve` uses no CPU time. (A ready descriptor that is never read keeps an event loop busy, and all other
/// tests still pass.)
#[test]
fn waiting_serve_uses_no_cpu() {
    let scene = Scene::new("sleeps");
    let server = scene.protect(&test_server(&scene));
    let seed = &mut Seed::choose("sleeps");
    Exchange::default().survives(&scene, &server, seed, || scene.connect(SERVER_PORT));
    server.wait_for("verified", 1);
    let serve = server.serve_pid().as_raw_nonzero().get();
    let (before, began) = (cpu_ticks(serve), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let (used, passed) = (cpu_ticks(serve) - before, began.elapsed());
    assert!(
        Duration::from_millis(10 * used) < passed / 4,
        "{used} ticks of CPU in {passed:?}"
    );
}

/// CPU time of a process, in ticks of 10 ms (proc(5), stat: fields 14 and 15).
fn cpu_ticks(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = text.rsplit_once(')').expect("a name");
    let ticks = fields.split_ascii_whitespace().skip(11).take(2);
    ticks
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum()
}
