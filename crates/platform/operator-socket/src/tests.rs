use std::{fmt, path::Path, thread};

use super::*;

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Example {
    Joined { epoch: u64 },
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Joined { epoch } = self;
        write!(f, "joined in epoch {epoch}")
    }
}

fn buffer_of(count: u64) -> EventBuffer {
    let mut events = EventBuffer::default();
    for number in 0..count {
        events.push(number.to_string(), number % 10 != 0);
    }
    events
}

/// Answers until the question of `client` has its answer.
fn answered<T: Send>(socket: &mut OperatorSocket, client: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let client = scope.spawn(client);
        while !client.is_finished() {
            socket.answer(|list| Some(format!("list: {list}")));
            thread::yield_now();
        }
        client.join().expect("no panic")
    })
}

fn lines(path: &Path, question: Question, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    ask(path, question, |line| {
        lines.push(line.to_owned());
        lines.len() < count
    })
    .expect("an answer");
    lines
}

#[test]
fn questions_are_answered() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let absent = ask(&path, Question::Status { list: true }, |_| false);
    assert_eq!(absent.expect_err("none").kind(), io::ErrorKind::NotFound);
    let mut socket = OperatorSocket::bind(path.clone()).expect("a socket");
    socket.events = buffer_of(3);
    let status = answered(&mut socket, || {
        lines(&path, Question::Status { list: true }, 2)
    });
    assert_eq!(status, [r#""list: true""#]);
    let status: String = answered(&mut socket, || {
        status_within(&path, REPLY_TIMEOUT).expect("a status")
    });
    assert_eq!(status, "list: false");
    let all = answered(&mut socket, || {
        lines(&path, Question::Events { follow: false }, 9)
    });
    assert_eq!(all, ["0", "1", "2"]);
    let follower = UnixStream::connect(&path).expect("a connection");
    (&follower)
        .write_all(b"{\"ask\":\"events\",\"follow\":true}\n")
        .expect("room");
    socket.answer(|_| None::<()>);
    socket.push_event("new".to_owned(), false);
    socket.answer(|_| None::<()>);
    let mut bytes = [0; 10];
    (&follower).read_exact(&mut bytes).expect("the events");
    assert_eq!(&bytes, b"0\n1\n2\nnew\n");
}

#[test]
fn nonsense_ends_the_connection() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let mut socket = OperatorSocket::bind(path.clone()).expect("a socket");
    for nonsense in [
        b"GET / HTTP/1.1\r\n".to_vec(),
        b"{\"ask\":\"status\",\"more\":1}\n".to_vec(),
        vec![b' '; QUESTION_BYTES_MAX + 1],
    ] {
        let mut client = UnixStream::connect(&path).expect("a connection");
        client.write_all(&nonsense).expect("room");
        // Twice: a long line is read in pieces.
        socket.answer(|_| None::<()>);
        socket.answer(|_| None::<()>);
        let end = client.read(&mut [0; 8]).map_or(0, |len| len);
        assert_eq!(end, 0, "{nonsense:?}");
    }
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn frequent_events_do_not_displace_rare_events() {
    let events = buffer_of(5000);
    let (lines, next) = events.since(0);
    assert_eq!(next, 5000);
    let rare = lines.iter().filter(|line| line.ends_with('0')).count();
    assert_eq!((rare, lines.len()), (500, 1500));
    let numbers: Vec<u64> = lines.iter().map(|line| line.parse().expect("it")).collect();
    assert!(numbers.is_sorted());
    assert_eq!(events.since(4998).0, ["4998", "4999"]);
}

#[test]
fn record_has_place_and_words() {
    let event = Example::Joined { epoch: 7 };
    let record = EventRecord::now(Source::Member("web1"), &event);
    let line: serde_json::Value = serde_json::from_str(&record.line()).expect("JSON");
    assert_eq!(line["version"], types::JSON_VERSION);
    assert_eq!(line["member"], "web1");
    assert_eq!(line["event"], "joined");
    assert_eq!(line["message"], "joined in epoch 7");
    assert!(line["run_unix_us"].as_u64() <= line["time_unix_us"].as_u64());
}
