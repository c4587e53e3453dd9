//! Clients of HTTP servers.

use e2e::arrange::await_closed_window;
use e2e::clients::{Http, finish, write};
use e2e::pattern;
use e2e::servers::{BIG_FILE_BYTES, SERVER_PORT, signal_all};
use lab::Signal;

use crate::{Outcome, Run, at, write_watched};

/// The comparable part of a response: all except the `Date`.
fn response(http: &mut Http, progress: impl FnMut(usize)) -> Vec<u8> {
    let response = http.response(progress);
    [response.head.join("\n").into_bytes(), response.body].concat()
}

/// A large file by GET.
pub(crate) fn download(run: &mut Run<'_>) -> Outcome {
    let place = run.seed.between(0, BIG_FILE_BYTES);
    let mut http = Http::new(run.scene.connect(SERVER_PORT));
    http.ask("/big.bin");
    let got = response(&mut http, at(place, run.crash));
    finish(http.stream());
    vec![got]
}

/// A large file by PUT, and the file that the server stored.
pub(crate) fn upload(run: &mut Run<'_>) -> Outcome {
    let content = pattern(4 << 20);
    // The rest comes when the server is surely dead: a server that had stored the whole file would really answer
    // otherwise the second time.
    let (begin, rest) = content.split_at(content.len() - 8192);
    let place = run.seed.between(0, begin.len());
    let mut http = Http::new(run.scene.connect(SERVER_PORT));
    let length = content.len();
    let head = format!("PUT /up/file HTTP/1.1\r\nHost: server\r\nContent-Length: {length}\r\n\r\n");
    write(http.stream(), head.as_bytes());
    write_watched(http.stream(), begin, at(place, run.crash));
    (run.dead)();
    write(http.stream(), rest);
    let answer = response(&mut http, |_| ());
    finish(http.stream());
    let stored = std::fs::read(run.scene.directory().join("www/up/file"));
    vec![answer, stored.expect("the server stored the file")]
}

/// Small files over a single connection, in sequence.
pub(crate) fn keep_alive(run: &mut Run<'_>) -> Outcome {
    let requests = 60;
    let place = run.seed.between(1, requests - 1);
    // Between two requests, or between a request and its answer.
    let asked = run.seed.between(0, 1) == 1;
    let mut http = Http::new(run.scene.connect(SERVER_PORT));
    let mut got = Vec::new();
    for number in 0..requests {
        if number == place && !asked {
            (run.crash)();
        }
        http.ask(&format!("/small/{}", run.seed.between(0, 9)));
        if number == place && asked {
            (run.crash)();
        }
        got.extend(response(&mut http, |_| ()));
    }
    finish(http.stream());
    vec![got]
}

/// Connections that are silent until after the crash, and a connection that was used before.
pub(crate) fn idle(run: &mut Run<'_>) -> Outcome {
    let open = || Http::new(run.scene.connect(SERVER_PORT));
    let mut clients: Vec<Http> = (0..6).map(|_| open()).collect();
    let used = run.seed.between(0, 5);
    let before = clients[used].get("/small/3").body;
    (run.crash)();
    let after = clients.iter_mut().enumerate().map(|(number, http)| {
        http.ask(&format!("/small/{number}"));
        let got = response(http, |_| ());
        finish(http.stream());
        got
    });
    after.chain([before]).collect()
}

/// A connection that is established and has sent a request, but was never accepted.
pub(crate) fn accept_queue(run: &mut Run<'_>) -> Outcome {
    let path = format!("/small/{}", run.seed.between(0, 9));
    let acceptors = (run.acceptors)();
    signal_all(&acceptors, Signal::STOP);
    let mut silent = Http::new(run.scene.connect(SERVER_PORT));
    let mut http = Http::new(run.scene.connect(SERVER_PORT));
    http.ask(&path);
    (run.crash)();
    silent.ask(&path);
    let get = |http: &mut Http| {
        let got = response(http, |_| ());
        finish(http.stream());
        got
    };
    vec![get(&mut http), get(&mut silent)]
}

/// A client that requests a large file and does not read until after the crash.
pub(crate) fn window_closed(run: &mut Run<'_>) -> Outcome {
    let mut http = Http::new(run.scene.connect(SERVER_PORT));
    http.ask("/big.bin");
    await_closed_window(run.scene);
    (run.crash)();
    let got = response(&mut http, |_| ());
    finish(http.stream());
    vec![got]
}
