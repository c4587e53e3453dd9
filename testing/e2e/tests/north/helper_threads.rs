//! Helper threads: a replay has no time for their work.

use std::{thread, time::Duration};

use e2e::{
    Scene,
    exchange::assert_all_recovered,
    loggers::status,
    servers::{interpreter, sleeper},
};

use super::{
    STATEFUL_REQUIRE, await_condition,
    command_server::Client,
    rare_calls::{built, kill, run},
};

/// A helper thread, without a wait for the end of the work.
const HELPER_SCRIPT: &str = r#"
import hashlib
wake, work, done = threading.Event(), bytes(1 << 22), []
def help():
    while True:
        wake.wait()
        wake.clear()
        for _ in range(4):
            hashlib.sha256(work)
        done.append(None)
threading.Thread(target=help, daemon=True).start()
"#;

/// A server's beginning: a helper, and a client.
const CLIENT_SCRIPT: &str = r#"
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, for_ever = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
static int client_with(void *(*helper)(void *)) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(8080) };
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    pthread_t thread;
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 16) || pthread_create(&thread, 0, helper, 0))
        exit(1);
    return accept(fd, 0, 0);
}
static void say(int client, const char *what, int first, int second) {
    char room[100];
    snprintf(room, sizeof room, what, first, second);
    write(client, room, strlen(room));
}
"#;

/// Counts the client's words. The first word wakes a helper thread that computes for ever.
const RESTLESS_SCRIPT: &str = r#"
static int heard;
static void *compute(void *nothing) {
    pthread_mutex_lock(&mutex);
    while (!heard)
        pthread_cond_wait(&woken, &mutex);
    pthread_mutex_unlock(&mutex);
    for (volatile long count = 0;; count++)
        ;
    return nothing;
}
int main(void) {
    int client = client_with(compute);
    char room[100];
    while (read(client, room, sizeof room) > 0) {
        pthread_mutex_lock(&mutex);
        heard++;
        pthread_mutex_unlock(&mutex);
        pthread_cond_signal(&woken);
        say(client, "%d\n", heard, 0);
    }
}
"#;

/// Gives a helper thread work for each word of the client, and answers how often the helper was still at work when
/// the next word came. As in redis, the first thread holds another mutex for ever.
const MUTEX_HOLDER_SCRIPT: &str = r#"
static int begun, done;
static void *work(void *nothing) {
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (begun == done)
            pthread_cond_wait(&woken, &mutex);
        pthread_mutex_unlock(&mutex);
        for (volatile long count = 0; count < 30000000; count++)
            ;
        pthread_mutex_lock(&mutex);
        done++;
    }
    return nothing;
}
int main(void) {
    pthread_mutex_lock(&for_ever);
    int client = client_with(work), was_at_work = 0;
    char room[100];
    while (read(client, room, sizeof room) > 0) {
        pthread_mutex_lock(&mutex);
        was_at_work += begun != done;
        begun++;
        pthread_cond_signal(&woken);
        pthread_mutex_unlock(&mutex);
        say(client, "%d %d\n", begun, was_at_work);
    }
}
"#;

/// A replay has no pause between two lines. The helper's work at the second line is the same.
#[test]
fn helper_work_ends_before_result_is_read() {
    let scene = Scene::new("helper");
    let server = scene.protect_with(&interpreter(&scene), &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    run(&mut client, HELPER_SCRIPT);
    for round in 1..=6 {
        run(&mut client, "wake.set()");
        if round % 3 != 0 {
            thread::sleep(Duration::from_millis(500));
        }
        assert_eq!(client.ask("len(done)"), round.to_string());
        if round % 2 == 0 {
            kill(&server, round / 2);
            assert_eq!(client.ask("len(done)"), round.to_string());
        }
    }
    assert_all_recovered(&server);
}

/// Also where the first thread is never without a mutex.
#[test]
fn permanently_held_mutex_does_not_block_helpers() {
    let scene = Scene::new("holder");
    let mut server = interpreter(&scene);
    server.command = vec![built(
        &scene,
        "holder",
        &[CLIENT_SCRIPT, MUTEX_HOLDER_SCRIPT].concat(),
    )];
    let server = scene.protect_with(&server, &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    for round in 1..=3 {
        for word in 3 * round - 2..=3 * round {
            assert_eq!(client.ask("word"), format!("{word} 0"));
        }
        kill(&server, round);
    }
    assert_eq!(client.ask("word"), "10 0");
    assert_all_recovered(&server);
}

/// A sleeping helper is not awaited. A message of the helper to the main thread arrives in each incarnation.
#[test]
fn helper_messages_are_replayed() {
    let scene = Scene::new("sleeper");
    let server = scene.protect_with(&sleeper(&scene), &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    for round in 1..=5 {
        for _ in 0..10 {
            client.ask("word");
        }
        assert_eq!(client.ask("last"), format!("last {}", 11 * round));
        kill(&server, round);
    }
    assert_eq!(client.ask("word"), "word 56");
    assert_all_recovered(&server);
}

/// Measured by the server's own clocks, which stand still in a replay.
#[test]
fn expired_wait_has_same_length_in_replay() {
    let scene = Scene::new("vain");
    let server = scene.protect_with(&interpreter(&scene), &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    for round in 1..=3 {
        for _ in 0..3 {
            assert_eq!(client.ask("threading.Event().wait(0.03)"), "False");
        }
        kill(&server, round);
        assert_eq!(client.ask("round(1.5)"), "2");
    }
    assert_all_recovered(&server);
}

/// A program that only reads clocks sees advancing clocks beyond the end of the record.
#[test]
fn clock_polling_ends_in_replay() {
    let scene = Scene::new("spin");
    let server = scene.protect_with(&interpreter(&scene), &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    for round in 1..=2 {
        let recorded = || status(&server)["determinant_log_bytes"].as_u64();
        let before = recorded();
        client.say(
            "end = time.monotonic() + 4\x01while time.monotonic() < end:\x01    sum(range(100000))",
        );
        await_condition("it has heard that", || recorded() > before);
        kill(&server, round);
        assert_eq!(client.receive(), "None");
        assert_eq!(client.ask("time.monotonic() > end"), "True");
    }
    assert_all_recovered(&server);
}

/// A single warning says that a replay may differ from that point on; no incarnation waits again.
#[test]
fn busy_helper_is_not_awaited() {
    let scene = Scene::new("restless");
    let mut server = interpreter(&scene);
    server.command = vec![built(
        &scene,
        "restless",
        &[CLIENT_SCRIPT, RESTLESS_SCRIPT].concat(),
    )];
    let server = scene.protect_with(&server, &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    let mut count = 0;
    for round in 1..=3 {
        for _ in 0..3 {
            count += 1;
            assert_eq!(client.ask("word"), count.to_string());
        }
        let told = server.wait_for("warning", 1)["message"].to_string();
        assert!(told.contains("five seconds"), "{told}");
        kill(&server, round);
    }
    assert_eq!(client.ask("word"), (count + 1).to_string());
    assert_eq!(server.events_of("warning").len(), 1);
    server.assert_none_of("connection_reset");
}
