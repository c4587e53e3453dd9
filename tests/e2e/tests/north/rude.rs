//! Servers that close connections, in ways in which their clients hear something else: before a death and after it.

use std::{io::ErrorKind, net::Shutdown, thread, time::Duration};

use e2e::{
    Scene,
    clients::{read_exactly, read_some, read_to_end, write},
    exchange::assert_all_kept,
    servers::{PORT, hesitant, rude},
};

use super::{REQUIRE, seldom::kill};

fn hears_the_reset(label: &str, flags: &[&str]) {
    let scene = Scene::new(label);
    let server = scene.protect_with(&rude(&scene), flags);
    let clients = [scene.connect(PORT), scene.connect(PORT)];
    for (kills, client) in clients.iter().enumerate() {
        for other in &clients[kills..] {
            write(other, b"a");
            assert_eq!(read_exactly(other, 1), b".");
        }
        write(client, b"!rest");
        let heard = read_some(client, &mut [0; 1]).map_err(|error| error.kind());
        assert_eq!(heard, Err(ErrorKind::ConnectionReset));
        if kills == 0 {
            kill(&server, 1);
        }
    }
    assert_all_kept(&server);
}

#[test]
fn who_is_not_read_hears_of_it() {
    hears_the_reset("rude", &REQUIRE);
}

#[test]
fn who_is_not_read_hears_of_it_without_a_record_of_the_server() {
    hears_the_reset("rudesouth", &[]);
}

/// The dead life has not closed it, and has said nothing; its record ends where it had heard all. The next one closes it in its
/// replay already.
#[test]
fn who_was_not_told_anything_yet_is_known_when_it_is_closed() {
    let scene = Scene::new("hesitant");
    let server = scene.protect_with(&hesitant(&scene), &REQUIRE);
    for (kills, words) in (1..).zip([&b"mere words"[..], b"+words", b"-", b"+"]) {
        let client = scene.connect(PORT);
        write(&client, words);
        client.shutdown(Shutdown::Write).expect("a FIN");
        thread::sleep(Duration::from_millis(150));
        kill(&server, kills);
        let heard = read_to_end(&client);
        let is_answered = words.starts_with(b"+");
        assert_eq!(heard, if is_answered { words } else { b"" });
    }
    assert_all_kept(&server);
}
