//! Clients of the test server. The commands are in `src/bin/test-server.rs`.

use std::fmt::Write as _;
use std::net::{Shutdown, TcpStream};
use std::thread;

use e2e::clients::{finish, read_exactly, read_to_end, write};
use e2e::servers::SERVER_PORT;
use e2e::{Checksum, assert_same_bytes, pattern};

use crate::{Outcome, Run, at, read_watched, write_watched};

/// The pattern on demand.
pub(crate) fn download(run: &mut Run<'_>) -> Outcome {
    let length = 8 << 20;
    let place = run.seed.between(0, length);
    let stream = run.scene.connect(SERVER_PORT);
    write(&stream, format!("pattern {length}\n").as_bytes());
    let got = read_watched(&stream, length, at(place, run.crash));
    assert_same_bytes("download", &pattern(length), &got);
    finish(&stream);
    vec![got]
}

/// Much to read, and a checksum as the answer.
pub(crate) fn upload(run: &mut Run<'_>) -> Outcome {
    let content = pattern(8 << 20);
    let place = run.seed.between(0, content.len());
    let stream = run.scene.connect(SERVER_PORT);
    write(&stream, format!("sink {}\n", content.len()).as_bytes());
    write_watched(&stream, &content, at(place, run.crash));
    let mut expected = String::new();
    writeln!(
        expected,
        "{} {:016x}",
        content.len(),
        Checksum::of(&content)
    )
    .expect("a string");
    let got = read_exactly(&stream, expected.len());
    assert_same_bytes("checksum", expected.as_bytes(), &got);
    finish(&stream);
    vec![got]
}

/// Consecutive requests with different lengths, on a single connection.
pub(crate) fn keep_alive(run: &mut Run<'_>) -> Outcome {
    let requests = 100;
    let place = run.seed.between(0, requests - 1);
    let asked = run.seed.between(0, 1) == 1;
    let stream = run.scene.connect(SERVER_PORT);
    let mut got = Vec::new();
    for number in 0..requests {
        let length = run.seed.between(0, 20_000);
        if number == place && !asked {
            (run.crash)();
        }
        write(&stream, format!("pattern {length}\n").as_bytes());
        if number == place && asked {
            (run.crash)();
        }
        got.extend(read_exactly(&stream, length));
    }
    finish(&stream);
    vec![got]
}

/// The server dies with received but unread bytes.
pub(crate) fn unread(run: &mut Run<'_>) -> Outcome {
    let length = run.seed.between(1, 60_000);
    let gate = run.scene.directory().join("read-on");
    let _ = std::fs::remove_file(&gate);
    let stream = run.scene.connect(SERVER_PORT);
    write(&stream, b"say hello\n");
    let mut got = read_exactly(&stream, 6);
    write(
        &stream,
        format!("wait {}\necho\n", gate.display()).as_bytes(),
    );
    write(&stream, &pattern(length));
    (run.crash)();
    std::fs::write(&gate, "").expect("open the gate");
    got.extend(read_exactly(&stream, length));
    finish(&stream);
    vec![got]
}

/// The client had finished before the crash, and waits for the rest.
pub(crate) fn half_closed_client(run: &mut Run<'_>) -> Outcome {
    let length = run.seed.between(1, 500_000);
    let gate = run.scene.directory().join("read-on");
    let _ = std::fs::remove_file(&gate);
    let stream = run.scene.connect(SERVER_PORT);
    write(&stream, b"say hello\n");
    let mut got = read_exactly(&stream, 6);
    let rest = format!("wait {}\npattern {length}\n", gate.display());
    write(&stream, rest.as_bytes());
    stream.shutdown(Shutdown::Write).expect("a FIN");
    (run.crash)();
    std::fs::write(&gate, "").expect("open the gate");
    got.extend(read_to_end(&stream));
    vec![got]
}

/// Thirty connections of three kinds at once; all see the same crash.
pub(crate) fn crowd(run: &mut Run<'_>) -> Outcome {
    let streams: Vec<TcpStream> = (0..30).map(|_| run.scene.connect(SERVER_PORT)).collect();
    let place = run.seed.between(0, 200_000);
    let content = pattern(200_000);
    let nothing = || ();
    thread::scope(|scope| {
        let clients = streams.iter().enumerate().map(|(number, stream)| {
            let content = &content;
            let crash = if number == 0 { run.crash } else { &nothing };
            scope.spawn(move || match number % 3 {
                0 => {
                    write(stream, b"pattern 200000\n");
                    read_watched(stream, 200_000, at(place, crash))
                }
                1 => {
                    write(stream, b"sink 200000\n");
                    write(stream, content);
                    read_exactly(stream, 24)
                }
                _ => {
                    write(stream, b"say one\n");
                    let one = read_exactly(stream, 4);
                    write(stream, b"say two\n");
                    [one, read_exactly(stream, 4)].concat()
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        let results = clients
            .into_iter()
            .map(|client| client.join().expect("a client"));
        let results = results.collect();
        streams.iter().for_each(finish);
        results
    })
}
