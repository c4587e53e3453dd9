//! `latch.h` with real deaths and real sockets: tracepoints cannot be run on data.

use std::{
    io::Write,
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use dataplane::{EventKind, Settings};
use libbpf_rs::query::LinkInfoIter;
use protocol::mirror::{CloseReason, FrameKind};
use south_model::{CrashOn, SocketChange, SocketState};
use supervise::{Cgroup, Command, mounts};
use wire::{FlowKey, SeqNumber};

use crate::harness::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// The event of a process that exited with this status.
fn exited(pid: u32, status: u32) -> EventKind {
    let status = status << 8; // as wait(2) gives it
    EventKind::Death { pid, status }
}

/// As long as a latch lives, the programs see changes of processes and sockets.
struct Latch {
    links: Vec<(&'static str, libbpf_rs::Link)>,
}

impl Latch {
    fn on(kernel: &Kernel) -> Self {
        let links = kernel.plane().latch();
        let links = links.expect("the kernel has BTF tracepoints");
        Self { links }
    }
}

impl Drop for Latch {
    /// Waits until the programs are detached: a process that another test is about to start has the
    /// descriptors until execve(2), and the next latch on the same programs would report each event
    /// twice.
    fn drop(&mut self) {
        let ids = self.links.drain(..).filter_map(|(_, link)| {
            let info = link.info();
            info.ok().map(|info| info.id)
        });
        let ids: Vec<u32> = ids.collect();
        let start = Instant::now();
        while LinkInfoIter::default().any(|link| ids.contains(&link.id)) {
            assert!(start.elapsed() < PATIENCE, "a latch stays attached");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A cgroup with a latch. The latch is dropped first.
struct Watched {
    _latch: Latch,
    kernel: Leased,
    cgroup: Option<Cgroup>,
    directory: tempfile::TempDir,
    _mount: mounts::Mount,
}

impl Watched {
    fn new(crash_on: CrashOn) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mount = mounts::cgroup2(directory.path()).expect("a cgroup2 mount");
        let name = format!("latch-{}", directory.path().file_name().unwrap().display());
        let cgroup = Cgroup::create(&mount, &name.replace('.', "")).expect("a cgroup");
        let settings = Settings {
            cgroup_id: cgroup.id(),
            cgroup_level: cgroup.level(),
            crash_on,
            ..settings()
        };
        let kernel = Leased::configured(&settings);
        Self {
            _latch: Latch::on(&kernel),
            kernel,
            cgroup: Some(cgroup),
            directory,
            _mount: mount,
        }
    }

    /// Runs the script in the cgroup to the end, as the main process or as another process; returns
    /// the process and the deaths that the latch saw.
    fn run(&self, script: &str, main: bool) -> (u32, Vec<EventKind>) {
        let go = self.directory.path().join("go");
        let _ = std::fs::remove_file(&go);
        let script = format!(
            "while [ ! -e {} ]; do sleep 0.01; done; {script}",
            go.display()
        );
        let cgroup = self.cgroup.as_ref().expect("until the end");
        let mut server = Command::new(["sh", "-c", &script])
            .start(cgroup)
            .expect("it starts");
        let pid = u32::try_from(server.pid().as_raw_nonzero().get()).unwrap();
        let named = if main { pid } else { 1 };
        self.kernel.plane().main_process(named).expect("it runs");
        std::fs::write(&go, "").expect("written");
        assert!(
            server.wait(PATIENCE).expect("our child").is_some(),
            "it ends"
        );
        let events = self.kernel.take_events();
        (pid, events.into_iter().map(|event| event.kind).collect())
    }

    /// Whether the gate is shut, tried with a packet.
    fn gated(&self) -> bool {
        let spec = segment(SeqNumber(1), SeqNumber(0)).flags(SYN);
        let mut syn = spec.packet(client_end(false, 0), server_end(false));
        self.kernel.ingress(&mut syn) == DROP
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(cgroup) = self.cgroup.take() {
            let _ = cgroup.kill();
            let _ = cgroup.wait_empty(PATIENCE);
            let _ = cgroup.remove();
        }
    }
}

#[test]
fn a_crash_of_the_main_process_shuts_the_gate() {
    for (script, status) in [
        ("kill -KILL $$", 9),
        ("kill -TERM $$", 15),
        ("ulimit -c 0; kill -ABRT $$", 6),
        ("kill -PIPE $$", 13),
        ("exit 3", 3 << 8),
    ] {
        let watched = Watched::new(CrashOn::Signal);
        assert!(!watched.gated());
        let (pid, events) = watched.run(script, true);
        assert_eq!(events, [EventKind::Death { pid, status }], "{script}");
        assert!(watched.gated(), "{script}");
    }
}

#[test]
fn an_orderly_end_does_not() {
    let watched = Watched::new(CrashOn::Signal);
    let (_, events) = watched.run("exit 0", true);
    assert_eq!((events, watched.gated()), (vec![], false));
    watched.kernel.plane().stopping(true).expect("it runs");
    let (_, events) = watched.run("kill -KILL $$", true);
    assert_eq!(
        (events, watched.gated()),
        (vec![], false),
        "it was asked to"
    );
}

#[test]
fn of_other_processes_a_signal_counts_and_a_status_only_if_asked_for() {
    let watched = Watched::new(CrashOn::Signal);
    for script in ["exit 3", "kill -PIPE $$", "(exit 4); exit 0"] {
        let (_, events) = watched.run(script, false);
        assert_eq!((events, watched.gated()), (vec![], false), "{script}");
    }
    let (main, events) = watched.run("sh -c 'kill -SEGV $$'; exit 0", true);
    let [EventKind::Death { pid, status }] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((pid != main, status & 0x7f), (true, 11));
    assert!(watched.gated());

    let watched = Watched::new(CrashOn::AnyFailure);
    let (_, events) = watched.run("kill -PIPE $$", false);
    assert_eq!((events, watched.gated()), (vec![], false));
    let (pid, events) = watched.run("exit 3", false);
    assert_eq!(events, [exited(pid, 3)]);
    assert!(watched.gated());
}

#[test]
fn a_death_that_is_left_to_the_parent_shuts_no_gate() {
    let watched = Watched::new(CrashOn::Main);
    for script in ["kill -KILL $$", "exit 3"] {
        let (_, events) = watched.run(script, false);
        assert_eq!((events, watched.gated()), (vec![], false), "{script}");
    }
    let (_, events) = watched.run("sh -c 'kill -KILL $$'; exit 0", true);
    assert_eq!((events, watched.gated()), (vec![], false), "a child");
    let (pid, events) = watched.run("exit 3", true);
    assert_eq!(events, [exited(pid, 3)]);
    assert!(watched.gated());
}

#[test]
fn one_death_is_told_and_a_new_life_waits_for_its_own() {
    let watched = Watched::new(CrashOn::Signal);
    let (_, events) = watched.run("sh -c 'kill -KILL $$'; kill -KILL $$", true);
    assert_eq!(events.len(), 1, "the gate is shut already");
    watched.kernel.plane().new_incarnation().expect("it runs");
    assert!(!watched.gated());
    let (pid, events) = watched.run("kill -KILL $$", true);
    assert_eq!(events, [EventKind::Death { pid, status: 9 }]);
    // Without `serve` no process would open the gate again.
    watched.kernel.plane().new_incarnation().expect("it runs");
    watched
        .kernel
        .age_heartbeat(settings().heartbeat_timeout + Duration::from_secs(1));
    let (_, events) = watched.run("kill -KILL $$", true);
    assert_eq!((events, watched.gated()), (vec![], false));
}

#[test]
fn a_thread_that_leaves_is_not_its_process_but_one_that_ends_it_is() {
    let watched = Watched::new(CrashOn::Signal);
    let run = |ending: &str| {
        let program = format!(
            "import ctypes, os, threading, time\n\
             leave = lambda: ctypes.CDLL(None).syscall({}, 5)\n\
             threading.Thread(target=leave).start()\n\
             time.sleep(0.2)\n\
             {ending}\n",
            libc::SYS_exit
        );
        let script = watched.directory.path().join("threads.py");
        std::fs::write(&script, program).expect("written");
        watched.run(&format!("exec python3 {}", script.display()), true)
    };
    let (_, events) = run("os._exit(0)");
    assert_eq!((events, watched.gated()), (vec![], false));
    let (pid, events) = run("threading.Thread(target=lambda: os._exit(3)).start(); time.sleep(20)");
    assert_eq!(events, [exited(pid, 3)]);
    assert!(watched.gated());
}

/// All threads end at once, on all processors.
#[test]
fn process_with_many_threads_has_one_death() {
    let watched = Watched::new(CrashOn::Signal);
    let program = "import os, threading, time\n\
                   for _ in range(40): threading.Thread(target=time.sleep, args=(20,)).start()\n\
                   os._exit(3)";
    let script = watched.directory.path().join("threads.py");
    std::fs::write(&script, program).expect("written");
    for _ in 0..20 {
        let (pid, events) = watched.run(&format!("exec python3 {}", script.display()), true);
        assert_eq!(events, [exited(pid, 3)]);
        watched.kernel.plane().new_incarnation().expect("it runs");
    }
}

#[test]
fn processes_elsewhere_do_not_matter() {
    let watched = Watched::new(CrashOn::AnyFailure);
    let status = std::process::Command::new("sh")
        .args(["-c", "kill -KILL $$"])
        .status();
    assert!(!status.expect("it ran").success());
    assert_eq!(
        (watched.kernel.take_events(), watched.gated()),
        (vec![], false)
    );
}

/// The number of the SYN of this socket's connection, on which no other data has arrived yet
/// (`TCP_QUEUE_SEQ`, tcp(7)).
fn received_isn(socket: &TcpStream) -> u32 {
    const TCP_REPAIR_OFF_WITHOUT_PROBE: libc::c_int = -1;
    let fd = socket.as_raw_fd();
    let mut number: libc::c_int = 0;
    let size = libc::socklen_t::try_from(size_of_val(&number)).unwrap();
    let mut length = size;
    let set = |level, option, value: libc::c_int| {
        // SAFETY: `value` is an int that lives until the call is over.
        let done = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), size) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    };
    set(libc::IPPROTO_TCP, libc::TCP_REPAIR, 1);
    set(libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, 1); // TCP_RECV_QUEUE
    // SAFETY: both point to variables of this function, and `length` is the size of the first.
    let done = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_QUEUE_SEQ,
            (&raw mut number).cast(),
            &raw mut length,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    set(
        libc::IPPROTO_TCP,
        libc::TCP_REPAIR,
        TCP_REPAIR_OFF_WITHOUT_PROBE,
    );
    set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1); // which that takes away
    number.cast_unsigned().wrapping_sub(1)
}

/// A real connection over the loopback, which passes no program of the service, and a flow from a
/// handshake in the test run.
struct Connected {
    _latch: Latch,
    both: Both,
    listener: TcpListener,
    client: Option<TcpStream>,
    server: Option<TcpStream>,
}

impl Connected {
    fn new(ip: &str) -> Self {
        Self::numbered(ip, false)
    }

    /// The flow may be of an`other` connection with the same ends.
    fn numbered(ip: &str, other: bool) -> Self {
        Self::opened(ip, other, |_| ())
    }

    /// Of a later incarnation, while earlier connections are recovered.
    fn in_a_recovery(ip: &str) -> Self {
        Self::opened(ip, false, |both| {
            both.gate();
            both.new_incarnation();
        })
    }

    fn opened(ip: &str, other: bool, before: impl FnOnce(&mut Both)) -> Self {
        let ip: IpAddr = ip.parse().unwrap();
        let listener = TcpListener::bind((ip, 0)).expect("the loopback is up");
        let address = listener.local_addr().unwrap();
        let settings = Settings {
            addresses: vec![address],
            netns_cookie: dataplane::netns_cookie().expect("Linux 5.14"),
            ..settings()
        };
        let kernel = Leased::configured(&settings);
        let latch = Latch::on(&kernel);
        let mut both = Both::on(kernel, &settings);
        let client = TcpStream::connect(address).expect("it listens");
        let key = FlowKey::new(client.local_addr().unwrap(), address);
        let server = listener.accept().expect("a connection").0;
        let other = if other { 1 << 20 } else { 0 };
        let c = SeqNumber(received_isn(&server)) + other;
        (both.key, both.c, both.s) = (key, c, SeqNumber(5000));
        before(&mut both);
        Self {
            _latch: latch,
            both: both.open(),
            listener,
            client: Some(client),
            server: Some(server),
        }
    }

    fn wait(&self, what: &str, condition: impl Fn(Option<&south_model::Flow>) -> bool) {
        let start = Instant::now();
        let flow = || {
            self.both
                .kernel
                .plane()
                .flow(self.both.key)
                .expect("readable")
        };
        while !condition(flow().as_ref()) {
            assert!(start.elapsed() < PATIENCE, "{what}: {:?}", flow());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The kernel has seen these changes already.
    fn becomes(&mut self, states: &[SocketState]) {
        let key = self.both.key;
        self.both.happened(|model, now| {
            for &new_state in states {
                model.socket_state(SocketChange { key, new_state }, now);
            }
        });
    }
}

#[test]
fn what_a_living_server_closes_passes_the_gate() {
    for ip in ["127.0.0.1", "::1"] {
        let mut t = Connected::new(ip);
        // Half-closed: an orphaned socket becomes a TIME-WAIT socket (FIN-WAIT-2, in truth) when
        // the client acknowledges the FIN, which is CLOSE for the flow.
        let server = t.server.as_ref().expect("it is open");
        server.shutdown(Shutdown::Write).expect("it is open");
        t.wait("closing", |flow| {
            flow.is_some_and(|flow| flow.server_closing)
        });
        t.becomes(&[SocketState::FinWait1]);
        t.both.gate();
        let fin = segment(t.both.s + 1, t.both.c + 1)
            .flags(FIN_ACK)
            .timestamps(901, 11);
        assert_eq!(t.both.server(fin).verdict, Next, "the kernel finishes it");
        let ack = segment(t.both.c + 1, t.both.s + 2).timestamps(12, 901);
        assert_eq!(t.both.client(ack).verdict, Next);
        t.both.new_incarnation();
        t.both.frames();
        t.client = None;
        t.wait("closed", |flow| flow.is_none());
        t.becomes(&[SocketState::Close]);
        let frames = t.both.frames();
        let kinds: Vec<FrameKind> = frames.iter().map(|frame| frame.kind).collect();
        assert_eq!(kinds, [FrameKind::Closed(CloseReason::Finished)]);
    }
}

#[test]
fn a_server_that_closes_second_or_with_unread_data_is_seen_too() {
    for ip in ["127.0.0.1", "::1"] {
        let mut t = Connected::new(ip);
        t.client = None;
        t.server = None; // CLOSE-WAIT to LAST-ACK
        t.wait("closed", |flow| flow.is_none());
        t.becomes(&[SocketState::LastAck, SocketState::Close]);

        let mut t = Connected::new(ip);
        let client = t.client.as_mut().expect("it is open");
        client.write_all(b"never read").expect("sent");
        let server = t.server.take().expect("it is open");
        server.peek(&mut [0]).expect("it has arrived");
        drop(server); // a RST, from a socket without a local port
        t.wait("closed", |flow| flow.is_none());
        t.becomes(&[SocketState::Close]);
    }
}

/// While other connections are recovered, too: without a RST, the client would wait for ever.
#[test]
fn a_new_connection_that_is_reset_in_a_recovery_is_told_so() {
    for ip in ["127.0.0.1", "::1"] {
        let mut t = Connected::in_a_recovery(ip);
        let client = t.client.as_mut().expect("it is open");
        client.write_all(b"never read").expect("sent");
        let server = t.server.take().expect("it is open");
        server.peek(&mut [0]).expect("it has arrived");
        drop(server);
        t.wait("closed", |flow| {
            flow.is_some_and(|flow| flow.closed_ns != 0)
        });
        t.becomes(&[SocketState::Close]);
        let rst = segment(t.both.s + 1, t.both.c + 1).flags(RST.union(ACK));
        assert_eq!(t.both.server(rst).verdict, Next);
    }
}

#[test]
fn the_end_of_another_socket_with_the_same_ends_does_not_matter() {
    for ip in ["127.0.0.1", "::1"] {
        for spliced in [false, true] {
            let mut t = Connected::numbered(ip, true);
            if spliced {
                t.both.splice(t.both.s + 1000);
            }
            (t.client, t.server) = (None, None);
            std::thread::sleep(Duration::from_millis(50));
            let flow = t.both.flow();
            assert!(!flow.server_closing && flow.closed_ns == 0, "{flow:?}");
        }
    }
}

#[test]
fn what_the_dead_leave_is_not_a_voluntary_close() {
    for ip in ["127.0.0.1", "::1"] {
        let mut t = Connected::new(ip);
        t.both.gate();
        (t.server, t.client) = (None, None);
        std::thread::sleep(Duration::from_millis(50));
        t.becomes(&[SocketState::FinWait1, SocketState::Close]);
        assert!(!t.both.flow().server_closing);
        let fin = segment(t.both.s + 1, t.both.c + 1).flags(FIN_ACK);
        assert_eq!(t.both.server(fin).verdict, DROP);
    }
}

/// In a replay, a server that can still read is to be given the rest; closing the socket is the end then, too.
#[test]
fn a_half_close_in_a_replay_is_told_from_a_close() {
    for ip in ["127.0.0.1", "::1"] {
        for closes in [false, true] {
            let mut t = Connected::new(ip);
            let (c, s) = (t.both.c, t.both.s);
            let words = segment(c + 1, s + 1).timestamps(12, 901);
            t.both.client(words.payload(b"ten bytes."));
            t.both.server(segment(s + 1, c + 11).timestamps(902, 12));
            t.both.gate();
            t.both.splice(s + 1000);
            if closes {
                t.server = None;
                t.wait("closing", |flow| {
                    flow.is_some_and(|flow| flow.server_closing)
                });
                continue;
            }
            let server = t.server.as_ref().expect("it is open");
            server.shutdown(Shutdown::Write).expect("it is open");
            t.wait("half-closed", |flow| {
                flow.is_some_and(|flow| flow.half_closed)
            });
            t.becomes(&[SocketState::HalfClosed]);
            assert!(!t.both.flow().server_closing);
            let replayed = segment(c + 1, s + 1).mark(MARK + south_model::MARK_CLIENT_SPACE);
            let replayed = t.both.client(replayed.payload(b"ten bytes."));
            assert_eq!(replayed.verdict, Next, "it reads on");
            t.server = None;
            t.wait("closing", |flow| {
                flow.is_some_and(|flow| flow.server_closing)
            });
        }
    }
}

#[test]
fn a_spliced_connection_that_is_closed_is_kept_until_it_is_swept_or_its_ports_are_used_again() {
    for ip in ["127.0.0.1", "::1"] {
        for sweep in [true, false] {
            let mut t = Connected::new(ip);
            t.both.splice(t.both.s + 1000);
            t.both.frames();
            (t.client, t.server) = (None, None);
            t.wait("closed", |flow| {
                flow.is_some_and(|flow| flow.closed_ns != 0)
            });
            t.becomes(&[SocketState::LastAck, SocketState::Close]);
            assert_eq!(t.both.frames().len(), 1, "closed");
            let late = segment(t.both.c + 1, t.both.s + 1).timestamps(12, 905);
            assert_eq!(
                t.both.client(late).segment().ack(),
                t.both.s + 1001,
                "still translated"
            );
            let replayed =
                segment(t.both.c + 1, t.both.s + 1).mark(MARK + south_model::MARK_CLIENT_SPACE);
            assert_eq!(t.both.client(replayed).verdict, DROP, "it would be reset");
            if sweep {
                assert_eq!(t.both.sweep(), 1);
            } else {
                assert_eq!(t.both.client(t.both.syn()).verdict, Next);
                let frames = t.both.frames();
                assert_eq!(frames[0].kind, FrameKind::Closed(CloseReason::Evicted));
                assert_eq!(t.both.kernel.half_open(), 1);
            }
            assert_eq!(t.both.model.flows().count(), 0);
        }
    }
}

#[test]
fn a_listener_on_a_protected_port_is_told() {
    for (ip, wildcard) in [("127.0.0.1", "0.0.0.0"), ("::1", "::"), ("127.0.0.1", "::")] {
        let t = Connected::new(ip);
        let address = t.listener.local_addr().unwrap();
        let other = TcpListener::bind((address.ip(), 0)).expect("the loopback is up");
        assert_eq!(t.both.kernel.take_events(), [], "another port");
        let Connected {
            both,
            listener,
            client,
            server,
            _latch,
        } = t;
        drop((listener, other));
        // The rest of the connection keeps the port busy for a listener without SO_REUSEADDR, which
        // the standard library sets.
        drop((server, client));
        for ip in [address.ip(), wildcard.parse().unwrap()] {
            let again = bind_patiently(&both, SocketAddr::new(ip, address.port()));
            let events = both.kernel.take_events();
            assert!(
                matches!(&events[..], [event] if event.kind == EventKind::Listening),
                "{ip}: {events:?}"
            );
            drop(again);
        }
    }
}

/// The connection of another test may have been given the port meanwhile.
fn bind_patiently(both: &Both, address: SocketAddr) -> TcpListener {
    let start = Instant::now();
    loop {
        both.kernel.take_events();
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{address}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
