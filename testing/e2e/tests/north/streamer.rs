//! A server that sends at its own pace, with Python's asyncio: the output continues unchanged after a kill.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    thread,
};

use e2e::{
    Scene, Seed,
    clients::finish,
    exchange::{assert_all_recovered, assert_untouched},
    servers::{SERVER_PORT, streamer},
};

use super::{STATEFUL_REQUIRE, kill_repeatedly};

pub(super) const STREAM_COUNT: usize = 4;
const TOKEN_COUNT: usize = 700;

/// Reads a whole stream, and returns from each token the number of tokens sent to all clients.
fn read(scene: &Scene, from: SocketAddr) -> Vec<u64> {
    let mut stream = BufReader::new(scene.connect_to(from));
    write!(
        stream.get_mut(),
        "GET /{TOKEN_COUNT} HTTP/1.1\r\nHost: server\r\n\r\n"
    )
    .expect("sent");
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line).expect("a line");
        assert!(line.ends_with('\n'), "the stream has ended");
        line.trim_end().to_owned()
    };
    while !line().is_empty() {}
    let (mut all, mut last, mut tokens) = (Vec::new(), 0, Vec::new());
    for number in 0..TOKEN_COUNT {
        let event = line();
        let token = event.strip_prefix("data: ").expect("a token").to_owned();
        assert_eq!(line(), "");
        let words: Vec<&str> = token.split(' ').collect();
        assert_eq!(words[0], number.to_string());
        let time: u64 = words[2].parse().expect("a time");
        assert!(time > last, "{time} after {last}");
        last = time;
        all.push(words[1].parse().expect("a number"));
        tokens.push(token);
    }
    assert_eq!(
        chain(scene, &tokens),
        "",
        "what was said is what it knows that it said"
    );
    finish(stream.get_ref());
    all
}

/// The first token without the hash of the tokens before.
fn chain(scene: &Scene, tokens: &[String]) -> String {
    const CHECK_SCRIPT: &str = "import hashlib, sys
sum = hashlib.sha256()
for line in open(sys.argv[1]):
    token = line.rstrip()
    if token.split()[-1] != sum.hexdigest():
        print(token)
        break
    sum.update(token.encode())
";
    let name = format!("tokens-{:?}", thread::current().id());
    let file = scene.write(&name, tokens.join("\n"));
    let arguments = ["-c", CHECK_SCRIPT, &file.to_string_lossy()];
    let checked = scene.on_client("/usr/bin/python3", &arguments);
    assert!(checked.status.success(), "{checked:?}");
    String::from_utf8_lossy(&checked.stdout).into_owned()
}

/// Reads whole streams while something else is done, and sees that each number was said once.
pub(super) fn read_all(scene: &Scene, from: SocketAddr, meanwhile: impl FnOnce()) {
    thread::scope(|scope| {
        let streams: Vec<_> = (0..STREAM_COUNT)
            .map(|_| scope.spawn(move || read(scene, from)))
            .collect();
        meanwhile();
        let said: Vec<u64> = streams
            .into_iter()
            .flat_map(|stream| stream.join().expect("a stream"))
            .collect();
        let all: BTreeSet<u64> = said.into_iter().collect();
        let expected = (1..=(STREAM_COUNT * TOKEN_COUNT) as u64).collect();
        assert_eq!(all, expected, "each number was said once");
    });
}

#[test]
fn asyncio_streams_continue_token_by_token() {
    let scene = Scene::new("streamer");
    let server = scene.protect_with(&streamer(&scene), &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let seed = &mut Seed::choose("streamer");
    read_all(&scene, scene.ipv4(SERVER_PORT), || {
        kill_repeatedly(&server, 5, seed);
    });
    assert_all_recovered(&server);
    assert_untouched(recording, STREAM_COUNT);
}
