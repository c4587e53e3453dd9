//! ngircd: users write in a channel.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use e2e::{
    Scene, Seed,
    clients::read_to_end,
    exchange::{assert_all_recovered, assert_untouched},
    servers::{SERVER_PORT, ngircd},
};

use super::{STATEFUL_REQUIRE, kill_repeatedly};

const USER_COUNT: usize = 5;

/// A user, and the connection.
struct User(BufReader<TcpStream>);

impl User {
    /// A user who has joined the channel.
    fn joins(scene: &Scene, number: usize) -> Self {
        let mut user = Self(BufReader::new(scene.connect(SERVER_PORT)));
        user.say(&format!(
            "NICK u{number}\r\nUSER u{number} 0 * :User {number}"
        ));
        user.until(" 001 ");
        user.say("JOIN #chat");
        user.until(" 366 ");
        user
    }

    fn say(&mut self, line: &str) {
        let line = format!("{line}\r\n");
        self.0.get_mut().write_all(line.as_bytes()).expect("sent");
    }

    /// The next line that is not the server's own affair.
    fn receive(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a line");
            assert!(line.ends_with("\r\n"), "the connection has ended: {line:?}");
            match line.trim_end().strip_prefix("PING ") {
                Some(token) => self.say(&format!("PONG {token}")),
                None => return line.trim_end().to_owned(),
            }
        }
    }

    fn until(&mut self, part: &str) -> String {
        loop {
            let line = self.receive();
            if line.contains(part) {
                return line;
            }
        }
    }
}

/// Sends messages until `ends`, then the number of messages.
fn send_messages(mut stream: TcpStream, ends: &AtomicBool) {
    let mut said = 0;
    while !ends.load(Ordering::Relaxed) {
        said += 1;
        write!(stream, "PRIVMSG #chat :{said}\r\n").expect("sent");
        thread::sleep(Duration::from_millis(2));
    }
    write!(stream, "PRIVMSG #chat :end {said}\r\n").expect("sent");
}

/// Receives the messages of all other users until the last, every line in order.
fn listen(user: &mut User) {
    let mut heard: BTreeMap<String, u64> = BTreeMap::new();
    let mut ended = 0;
    while ended < USER_COUNT - 1 {
        let line = user.until(" PRIVMSG #chat :");
        let (from, text) = line.split_once(" PRIVMSG #chat :").expect("a message");
        let count = heard.entry(from.to_owned()).or_default();
        match text.strip_prefix("end ") {
            Some(all) => {
                assert_eq!(all, count.to_string(), "{from}");
                ended += 1;
            }
            None => {
                *count += 1;
                assert_eq!(text, count.to_string(), "{from}");
            }
        }
    }
}

#[test]
fn ngircd_delivers_all_messages() {
    let scene = Scene::new("ngircd");
    let server = scene.protect_with(&ngircd(&scene), &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let seed = &mut Seed::choose("ngircd");
    let (ends, all_are_there) = (AtomicBool::new(false), Barrier::new(USER_COUNT + 1));
    let (scene, ends, all_are_there) = (&scene, &ends, &all_are_there);
    thread::scope(|scope| {
        let users: Vec<_> = (0..USER_COUNT)
            .map(|number| {
                scope.spawn(move || {
                    let mut user = User::joins(scene, number);
                    let stream = user.0.get_ref().try_clone().expect("a duplicate");
                    all_are_there.wait();
                    thread::scope(|scope| {
                        scope.spawn(move || send_messages(stream, ends));
                        listen(&mut user);
                    });
                    user.say("TOPIC #chat");
                    user.until("#chat :");
                    user.say("QUIT");
                    user.until("ERROR :Closing connection");
                    assert_eq!(read_to_end(user.0.get_ref()), b"");
                })
            })
            .collect();
        all_are_there.wait();
        kill_repeatedly(&server, 5, seed);
        ends.store(true, Ordering::Relaxed);
        for user in users {
            user.join().expect("a user");
        }
    });
    assert_all_recovered(&server);
    assert_untouched(recording, USER_COUNT);
}
