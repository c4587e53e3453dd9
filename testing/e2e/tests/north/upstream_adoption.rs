//! Connections from the service's own address to other servers continue like connections of clients.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, TcpListener},
};

use e2e::{
    Protected, Scene,
    exchange::assert_all_recovered,
    loggers::status,
    servers::{SERVER_PORT, interpreter},
};
use lab::Signal;
use rustix::process::Pid;

use super::{STATEFUL_REQUIRE, await_condition, command_server::Client};

/// Has the process stopped?
fn await_stop(pid: Pid) {
    let about = format!("/proc/{pid}/stat");
    await_condition("it has stopped", || {
        let about = fs::read_to_string(&about).expect("it is there");
        let rest = about.rsplit(") ").next().map(str::to_owned);
        rest.is_some_and(|rest| rest.starts_with('T'))
    });
}

/// Waits until the process waits for an answer (`recvfrom`).
fn await_question(pid: Pid) {
    let call = format!("/proc/{pid}/syscall");
    await_condition("it asks", || {
        let call = fs::read_to_string(&call).expect("it is there");
        call.starts_with("45 ")
    });
}

/// Kills the server after the connection has been adopted, and before the server has received the answer about that.
fn dies_before_it_has_noted(server: &Protected, is_known: impl FnMut() -> bool) {
    let main = server.main_pid();
    await_question(main);
    server.kill_main(Signal::STOP);
    await_stop(main);
    server.kill_serve(Signal::CONT);
    await_condition("it has joined", is_known);
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
}

#[test]
fn upstream_connection_survives_unrecorded_adoption() {
    let scene = Scene::new("unnoted");
    let server = scene.protect_with(&interpreter(&scene), &STATEFUL_REQUIRE);
    let stream = scene.connect(SERVER_PORT);
    let here = stream.local_addr().expect("an address").ip();
    let there = scene.ipv4(SERVER_PORT).ip();
    let mut client = Client::at(stream);
    assert_eq!(client.ask("6 * 7"), "42");
    let bind = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0));
    let listener = scene.client.enter(bind).expect("a host").expect("a port");
    let port = listener.local_addr().expect("an address").port();

    server.kill_serve(Signal::STOP);
    await_stop(server.serve_pid());
    let lines = [
        "opened = socket.socket()".to_owned(),
        format!("opened.bind(('{there}', 0))"),
        format!("opened.connect(('{here}', {port}))"),
    ];
    client.say(&lines.join("\x01"));
    let (other, _) = listener.accept().expect("accepted");
    dies_before_it_has_noted(&server, || status(&server)["connections"] == 2);

    assert_eq!(client.receive(), "None");
    assert_eq!(client.ask(r"opened.send(b'hello\n')"), "6");
    let mut heard = String::new();
    let mut other = BufReader::new(other);
    other.read_line(&mut heard).expect("a line");
    assert_eq!(heard, "hello\n");
    other.get_mut().write_all(b"and more").expect("sent");
    assert_eq!(client.ask("opened.recv(3)"), "b'and'");
    server.kill_main(Signal::KILL);
    server.wait_serving(2);
    assert_eq!(client.ask("opened.recv(100)"), "b' more'");
    assert_all_recovered(&server);
}
