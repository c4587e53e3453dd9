//! A redis that is killed, and goes on from its record.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wrap::{Ends, Handover, Library, Memory, Passed, Position};
use wrap_abi::{
    handover::Message,
    layout::{FILE_FD, HANDOVER_FD, SOCKET_FD, VARIABLE, VERSION},
};

/// One life of a server.
struct Life {
    child: Child,
    handover: Handover,
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(memory: &Memory, program: &str, arguments: &[&str]) -> Life {
    let handover = Handover::new().expect("a handover");
    let library = Library::new().expect("the library");
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
        .env("LD_PRELOAD", Library::path())
        .env(VARIABLE, VERSION.to_string());
    let inherited: Vec<(OwnedFd, i32)> = [
        (memory.as_fd(), FILE_FD),
        (handover.theirs(), SOCKET_FD),
        (handover.file(), HANDOVER_FD),
        (library.as_fd(), Library::FD),
    ]
    .into_iter()
    .map(|(fd, number): (BorrowedFd<'_>, i32)| {
        (fd.try_clone_to_owned().expect("a descriptor"), number)
    })
    .collect();
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one sequence with one reason
    // SAFETY: system calls only.
    unsafe {
        command.pre_exec(move || {
            for (fd, number) in &inherited {
                if libc::dup2(fd.as_raw_fd(), *number) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let child = command.spawn().expect("the server starts");
    Life { child, handover }
}

fn connect(port: u16) -> TcpStream {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => return stream,
            Err(error) if Instant::now() > until => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A client, which counts what it was told.
struct Client {
    stream: TcpStream,
    address: SocketAddr,
    sent: u64,
    received: u64,
}

impl Client {
    fn new(port: u16) -> Self {
        let stream = connect(port);
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a timeout");
        let address = stream.local_addr().expect("an address");
        Self {
            stream,
            address,
            sent: 0,
            received: 0,
        }
    }

    fn send(&mut self, words: &[&str]) {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.stream.write_all(request.as_bytes()).expect("sent");
        self.sent += request.len() as u64;
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("an answer");
            self.received += 1;
            line.extend(byte);
        }
        String::from_utf8_lossy(&line[..line.len() - 2]).into_owned()
    }

    fn answer(&mut self) -> String {
        let line = self.line();
        match line.as_bytes().first() {
            Some(b'$') if line != "$-1" => {
                let length: usize = line[1..].parse().expect("a length");
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes).expect("a value");
                self.received += bytes.len() as u64;
                String::from_utf8_lossy(&bytes[..length]).into_owned()
            }
            Some(b'*') => {
                let count: usize = line[1..].parse().unwrap_or(0);
                (0..count)
                    .map(|_| self.answer())
                    .collect::<Vec<_>>()
                    .join(" ")
            }
            _ => line,
        }
    }

    fn ask(&mut self, words: &[&str]) -> String {
        self.send(words);
        self.answer()
    }

    fn position(&self, port: u16) -> Position {
        let sockaddr = |address: SocketAddr| {
            let SocketAddr::V4(address) = address else {
                panic!("IPv4")
            };
            let mut bytes = [0u8; 16];
            bytes[..2].copy_from_slice(&2u16.to_ne_bytes());
            bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&address.ip().octets());
            bytes
        };
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let ends = Ends::from_sockaddrs(&sockaddr(self.address), &sockaddr(server));
        Position {
            ends: ends.expect("addresses"),
            received: self.received,
        }
    }
}

fn await_replay(life: &mut Life, memory: &Memory) -> Vec<Passed> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(Message::Replayed { .. }) = life.handover.message().expect("a message") {
            return life.handover.take().expect("a handover");
        }
        let ended = life.child.try_wait().expect("a status");
        assert!(ended.is_none(), "{ended:?}: {:?}", memory.divergence());
        assert!(Instant::now() < until, "not replayed");
        let mut fds = [PollFd::from_borrowed_fd(
            life.handover.ours(),
            PollFlags::IN,
        )];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        let _ = poll(&mut fds, Some(&timeout));
    }
}

/// Each client goes on with another connection, whose other end is the server's.
fn hand_over(life: &Life, passed: &[Passed], clients: &mut [Client], port: u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    for client in clients {
        let ends = client.position(port).ends;
        let one = passed
            .iter()
            .find(|one| one.standing.ends == ends && !one.standing.is_closed)
            .expect("its connection");
        assert_eq!(one.standing.instream, client.sent);
        assert_eq!(one.offset, client.received);
        let stream =
            TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        server.write_all(&one.said).expect("written");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a timeout");
        client.stream = stream;
        life.handover
            .give(one.connection, server.as_fd())
            .expect("given");
    }
    life.handover.go().expect("gone on");
}

const COMMANDS: [&[&str]; 22] = [
    &["SET", "s%", "value %"],
    &["SET", "s%", "x", "PX", "20000"],
    &["GET", "s%"],
    &["EXPIRE", "s%", "100"],
    &["PTTL", "s%"],
    &["SADD", "set", "a%", "b%", "c%"],
    &["SPOP", "set"],
    &["SRANDMEMBER", "set", "3"],
    &["RANDOMKEY"],
    &["TIME"],
    &["HSET", "hash", "f%", "%"],
    &["HRANDFIELD", "hash", "2"],
    &["ZADD", "z", "%", "m%"],
    &["ZRANDMEMBER", "z"],
    &["LPUSH", "list", "%"],
    &["RPOP", "list"],
    &["XADD", "stream", "*", "f", "%"],
    &[
        "EVAL",
        "local t=redis.call('TIME'); redis.call('SET','e',t[1]..':'..t[2]..':'..math.random(1000)); return t",
        "0",
    ],
    &["ACL", "GENPASS"],
    &["CLIENT", "ID"],
    &["OBJECT", "IDLETIME", "s%"],
    &["INCR", "counter"],
];

fn play(clients: &mut [Client], seed: &mut u64, commands: usize) {
    let mut random = |bound: usize| {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(*seed >> 33).unwrap_or(0) % bound
    };
    for _ in 0..commands {
        let number = random(50).to_string();
        let words: Vec<String> = COMMANDS[random(COMMANDS.len())]
            .iter()
            .map(|word| word.replace('%', &number))
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let client = random(clients.len());
        clients[client].ask(&words);
    }
}

#[test]
fn redis_goes_on_from_its_record() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path().to_str().expect("text").to_owned();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|one| one.local_addr())
        .expect("a port")
        .port();
    let port_text = port.to_string();
    let arguments = [
        "--port",
        &port_text,
        "--save",
        "",
        "--dir",
        &directory,
        "--enable-debug-command",
        "yes",
        "--bind",
        "127.0.0.1",
    ];
    let memory = Memory::new().expect("memory");
    let mut life = start(&memory, "redis-server", &arguments);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::new(port)).collect();
    let mut seed = 7;
    for round in 0..3 {
        play(&mut clients, &mut seed, 2000);
        let state = [
            &["DEBUG", "DIGEST"][..],
            &["CLIENT", "ID"],
            &["GET", "counter"],
            &["LASTSAVE"],
        ]
        .map(|words| clients[1].ask(words));
        // A transaction that is open when it dies.
        clients[2].ask(&["MULTI"]);
        clients[2].ask(&["INCR", "counter"]);
        life.child.kill().expect("killed");
        life.child.wait().expect("reaped");
        let mut positions: Vec<Position> =
            clients.iter().map(|client| client.position(port)).collect();
        memory.to_be_replayed(&mut positions).expect("memory");
        let began = Instant::now();
        life = start(&memory, "redis-server", &arguments);
        let passed = await_replay(&mut life, &memory);
        eprintln!(
            "round {round}: {} bytes of record replayed in {:?}",
            memory.length(0),
            began.elapsed()
        );
        hand_over(&life, &passed, &mut clients, port);
        let again = [
            &["DEBUG", "DIGEST"][..],
            &["CLIENT", "ID"],
            &["GET", "counter"],
            &["LASTSAVE"],
        ]
        .map(|words| clients[1].ask(words));
        assert_eq!(state, again);
        let executed = clients[2].ask(&["EXEC"]);
        assert_eq!(
            executed,
            format!(":{}", again[2].parse::<u64>().unwrap_or(0) + 1)
        );
    }
}
