//! Servers that cannot be rebuilt from a record are refused, with the reason.

use std::{
    fs,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Output,
    thread,
    time::Duration,
};

use e2e::{
    Protected, Scene,
    loggers::{Logger, protect, with_logger},
    servers::{SERVER_PORT, Server, interpreter, memcached, nginx, nginx_alone, redis},
};
use lab::Signal;

use super::{command_server::Client, rare_calls::run};

/// A statically linked server takes no library: no service is better than a service with unrecorded state.
#[test]
fn static_server_is_refused() {
    let scene = Scene::new("static");
    let output = serve(&scene, &[], &[&static_server(&scene)]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("statically linked"), "{said}");
}

/// The work of another program would not be recorded.
#[test]
fn server_that_execs_is_refused() {
    let scene = Scene::new("wrapper");
    let output = serve(&scene, &[], &["env", "NAME=value", "redis-server"]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("executes another program"), "{said}");
}

/// The same where the program begins the server as a child.
#[test]
fn server_behind_wrapper_is_refused() {
    let scene = Scene::new("script");
    let address = scene.ipv4(SERVER_PORT);
    let server = format!(
        "redis-server --bind {} --port {} --protected-mode no & wait",
        address.ip(),
        address.port()
    );
    let output = serve(&scene, &[], &["sh", "-c", &server]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("runs another program"), "{said}");
}

fn static_server(scene: &Scene) -> String {
    let source = scene.write("static.c", STATIC_SERVER);
    let program = scene.directory().join("static-server");
    let built = std::process::Command::new("gcc")
        .args(["-static", "-o"])
        .args([&program, &source])
        .status();
    assert!(built.expect("gcc").success());
    program.to_string_lossy().into_owned()
}

/// The words of `serve` up to the end of `serve`.
pub(super) fn serve(scene: &Scene, flags: &[&str], server: &[&str]) -> Output {
    let outlive = e2e::binaries::outlive();
    let mut command = scene.server.command(&outlive.to_string_lossy());
    command.args([
        "serve",
        "--stateful=require",
        "--address",
        &scene.ipv4(SERVER_PORT).to_string(),
    ]);
    command
        .args(flags)
        .arg("--run-dir")
        .arg(scene.run_dir())
        .arg("--")
        .args(server);
    command.output().expect("serve")
}

const STATIC_SERVER: &str = r"
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(8080) };
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 16))
        return 1;
    for (;;)
        pause();
}
";

/// An unknown name: the mistake is found while the server runs.
pub(super) fn unknown(scene: &Scene, mut server: Server) -> Server {
    let found = std::process::Command::new("which")
        .arg(&server.command[0])
        .output()
        .expect("which");
    let program = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    let link = scene.directory().join("a-server");
    symlink(program, &link).expect("a link");
    server.command[0] = link.to_string_lossy().into_owned();
    server
}

/// The threads of memcached serve clients, which cannot be replayed. The mistake is noticed when a thread gets the
/// first client, before that client has said anything.
#[test]
fn threaded_server_is_refused() {
    let scene = Scene::new("memcached");
    let said = refused(&scene, &unknown(&scene, memcached(&scene)), &[]);
    let expected =
        "a-server cannot be rebuilt from a record of its input: a thread other than the first";
    assert!(said.contains(expected), "{said}");
    assert!(said.contains("from one thread"), "{said}");
    assert!(
        said.contains("the server made a call that cannot be replayed"),
        "{said}"
    );
    assert!(!said.contains("did not come back in time"), "{said}");
}

/// The workers of nginx share memory: a worker that accepts a client is refused. The words do not depend on the
/// workers' standard error.
#[test]
fn workers_with_shared_memory_are_refused_with_advice() {
    let scene = Scene::new("workers");
    let said = refused(&scene, &unknown(&scene, nginx(&scene)), &[]);
    // With the client, or with the first message of the master.
    let expected = "a-server cannot be rebuilt from a record of its input: a child with clients";
    assert!(said.contains(expected), "{said}");
    assert!(said.contains("`master_process off; daemon off;`"), "{said}");
    assert!(said.contains("the next call cannot be replayed"), "{said}");
    assert!(!said.contains("killed by signal"), "{said}");
    assert!(!said.contains("did not come back in time"), "{said}");
}

/// A known server is served without a record from the start, if a record was only preferred: `check` says so, too.
#[test]
fn known_server_is_served_unrecorded_with_prefer() {
    let scene = Scene::new("prefer-known");
    let server = scene.protect_with(&memcached(&scene), &STATEFUL_PREFER);
    let mut client = scene.connect_to(scene.ipv4(SERVER_PORT));
    is_answered(&mut client);
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    is_answered(&mut client);
    assert_no_client_notices(&server);
    let check = server.outlive("check", &["--stateful=prefer", "--", "memcached"]);
    assert_eq!(check.status, Some(0), "{check:?}");
    assert!(
        check
            .stdout
            .contains("the state of the server is not protected"),
        "{check:?}"
    );
}

/// `check` knows such servers before the start.
#[test]
fn check_reports_unrecordable_servers() {
    let [scene, alone] = ["known", "alone"].map(Scene::new);
    let script = scene.write("server", "#!/bin/sh\nexec redis-server\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("executable");
    let script = script.to_string_lossy().into_owned();
    for (command, found) in [
        (redis(&scene).command, None),
        (memcached(&scene).command, Some("from one thread")),
        (
            nginx(&scene).command,
            Some("`master_process off; daemon off;`"),
        ),
        (nginx_alone(&alone).command, None),
        (vec![script], Some("it is a script of sh")),
    ] {
        let outlive = e2e::binaries::outlive();
        let mut check = scene.server.command(&outlive.to_string_lossy());
        check
            .args(["check", "--stateful", "require", "--"])
            .args(&command);
        let output = check.output().expect("check");
        let said = String::from_utf8_lossy(&output.stdout);
        let expected = if found.is_none() { 0 } else { 78 };
        assert_eq!(output.status.code(), Some(expected), "{command:?}: {said}");
        assert!(said.contains(found.unwrap_or_default()), "{said}");
    }
}

/// A replay could not give a server the descriptors of another process again.
#[test]
fn server_with_inherited_descriptors_is_refused() {
    let scene = Scene::new("rights");
    let path = scene.directory().join("giver.socket");
    let lines = format!(
        "giver, here = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
giver.bind({path:?})
giver.listen()
here.connect({path:?})
there, _ = giver.accept()
there.send(b'bytes')
assert here.recvmsg(5, 100)[:2] == (b'bytes', [])
socket.send_fds(there, [b'x'], [0])
socket.recv_fds(here, 1, 1)"
    );
    let word = lines.replace('\n', "\x01") + "\n";
    let said = refused(&scene, &interpreter(&scene), word.as_bytes());
    assert!(said.contains("receives descriptors"), "{said}");
}

/// With `prefer`, a server that cannot be recorded continues without a record. The client that reveals the problem
/// sees nothing.
#[test]
fn threaded_server_continues_unrecorded_with_prefer() {
    let scene = Scene::new("prefer");
    let definition = unknown(&scene, memcached(&scene));
    let mut server = scene.protect_with(&definition, &STATEFUL_PREFER);
    let mut client = scene.connect_to(scene.ipv4(SERVER_PORT));
    is_answered(&mut client);
    let trouble = server.wait_for("warning", 1)["message"].to_string();
    assert!(trouble.contains("cannot be rebuilt"), "{trouble}");
    server.wait_serving(1);
    for recoveries in [2, 3] {
        is_answered(&mut client);
        server.kill_main(Signal::KILL);
        server.wait_serving(recoveries);
    }
    assert_no_client_notices(&server);
    // Another `serve` with the same options finds a server without a record.
    server.kill_serve_itself();
    server.succeed(&scene, &definition, &STATEFUL_PREFER);
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    is_answered(&mut client);
    assert_no_client_notices(&server);
}

/// The same after some service: the old output is compared with the output of the server without a record.
#[test]
fn late_refused_server_continues_unrecorded_with_prefer() {
    continues_after_late_refusal(&Scene::new("prefer-late"), &STATEFUL_PREFER);
}

/// Also beyond the recorded beginning of an answer: random bytes differ in each life.
#[test]
fn output_is_verified_after_abandoned_record() {
    let scene = Scene::new("prefer-hash");
    is_compared(&scene, &STATEFUL_PREFER);
}

/// The same with the record at a logger.
#[test]
fn output_is_verified_after_record_abandoned_at_logger() {
    let (scene, logger) = with_logger("prefer-hash-logger");
    is_compared(&scene, &with_copies(&logger).each_ref().map(String::as_str));
}

/// The options for a logger that gets copies of all input of few clients.
fn with_copies(logger: &Logger) -> [String; 6] {
    let [way, at, keys, file, _] = logger.flags();
    let few = "--mirror-skip-above=20000".to_owned();
    [way, at, keys, file, few, STATEFUL_PREFER[0].to_owned()]
}

fn is_compared(scene: &Scene, flags: &[&str]) {
    let server = scene.protect_with(&interpreter(scene), flags);
    let mut clients = [(); 2].map(|()| Client::new(scene));
    let [first, second] = &mut clients;
    assert_eq!(first.ask("6 * 7"), "42");
    let heard = second.ask("'a' * 6000 + os.urandom(8).hex()");
    assert!(heard.len() >= 6016, "{heard}");
    run(first, DESCRIPTOR_SCAN_SCRIPT);
    let lost = server.wait_for("connection_reset", 1);
    let reason = lost["reason"].as_str().expect("words");
    assert!(reason.contains("(by the hash)"), "{lost}");
    assert_eq!(first.ask("7 * 7"), "49");
    assert_eq!(
        server.events_of("connection_reset").len(),
        1,
        "the other connection is kept"
    );
}

/// The same with a logger on another host: the logger has the input of clients besides the server's notes.
#[test]
fn server_at_logger_continues_unrecorded_with_prefer() {
    let (scene, logger) = with_logger("prefer-logger");
    let definition = unknown(&scene, memcached(&scene));
    let mut server = protect(&scene, &definition, &logger, &STATEFUL_PREFER);
    let mut client = scene.connect_to(scene.ipv4(SERVER_PORT));
    is_answered(&mut client);
    let trouble = server.wait_for("warning", 1)["message"].to_string();
    assert!(trouble.contains("cannot be rebuilt"), "{trouble}");
    server.wait_serving(1);
    for recoveries in [2, 3] {
        is_answered(&mut client);
        server.kill_main(Signal::KILL);
        server.wait_serving(recoveries);
    }
    assert_no_client_notices(&server);
    server.kill_serve_itself();
    let flags = logger.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    server.succeed(
        &scene,
        &definition,
        &[&flags[..], &STATEFUL_PREFER].concat(),
    );
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    is_answered(&mut client);
    assert_no_client_notices(&server);
}

/// Clients with answers go on, too, if the logger has copies of all input of these clients.
#[test]
fn late_refused_server_at_logger_continues_with_prefer() {
    let (scene, logger) = with_logger("prefer-late-logger");
    let flags = with_copies(&logger);
    continues_after_late_refusal(&scene, &flags.each_ref().map(String::as_str));
}

/// Two clients: the second makes the server do the forbidden; then another death.
fn continues_after_late_refusal(scene: &Scene, flags: &[&str]) {
    let server = scene.protect_with(&interpreter(scene), flags);
    let mut clients = [(); 2].map(|()| Client::new(scene));
    let [first, second] = &mut clients;
    assert_eq!(first.ask("6 * 7"), "42");
    run(second, DESCRIPTOR_SCAN_SCRIPT);
    server.wait_serving(1);
    assert_eq!([first.ask("7 * 7"), second.ask("8 * 8")], ["49", "64"]);
    server.kill_main(Signal::KILL);
    server.wait_serving(2);
    assert_eq!([first.ask("9 * 9"), second.ask("0 * 7")], ["81", "0"]);
    assert_no_client_notices(&server);
}

pub(super) fn assert_no_client_notices(server: &Protected) {
    server.assert_none_of("connection_reset");
    server.assert_none_of("unprotected");
}

pub(super) const STATEFUL_PREFER: [&str; 1] = ["--stateful=prefer"];

pub(super) fn is_answered(client: &mut TcpStream) {
    let mut answer = [0; 8];
    client.write_all(b"version\r\n").expect("sent");
    client.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"VERSION ");
    BufReader::new(client).skip_until(b'\n').expect("a line");
}

/// Another thread looks at all open descriptors.
pub(super) const DESCRIPTOR_SCAN_SCRIPT: &str = r"
def look():
    for fd in range(3, 50):
        try:
            os.fstat(fd)
            select.select([fd], [], [], 0)
        except OSError:
            pass
threading.Thread(target=look).start()
";

/// A mistake that is known before the start: the server begins without a record.
#[test]
fn static_server_is_served_unrecorded_with_prefer() {
    let scene = Scene::new("prefer-static");
    let mut definition = interpreter(&scene);
    definition.command = vec![static_server(&scene)];
    let server = scene.protect_with(&definition, &["--stateful=prefer"]);
    let trouble = server.wait_for("warning", 1)["message"].to_string();
    assert!(trouble.contains("statically linked"), "{trouble}");
    let client = scene.connect(SERVER_PORT);
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    server.assert_none_of("connection_reset");
    drop(client);
}

/// The words of `serve` after the server has heard this.
fn refused(scene: &Scene, server: &Server, word: &[u8]) -> String {
    let words: Vec<&str> = server.command.iter().map(String::as_str).collect();
    let output = thread::scope(|scope| {
        let serving = scope.spawn(|| serve(scene, &[], &words));
        let connect = || TcpStream::connect(scene.ipv4(SERVER_PORT));
        let mut stream = loop {
            match scene.client.enter(connect).expect("a host") {
                Ok(stream) => break stream,
                Err(error) => assert!(!serving.is_finished(), "{error}"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        // A client that only listens is told, too.
        let listener = match word {
            [] => stream,
            _ => {
                let listener = scene.connect(SERVER_PORT);
                stream.write_all(word).expect("sent");
                listener
            }
        };
        let output = serving.join().expect("it ends");
        let heard = (&listener).read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(heard, Err(ErrorKind::ConnectionReset));
        output
    });
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--stateful=off"), "{said}");
    said
}
