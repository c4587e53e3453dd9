//! A server that has not read all when it closes: its client hears that, before a death and after it.

use std::io::ErrorKind;

use e2e::{
    Scene,
    clients::{read_exactly, read_some, write},
    exchange::assert_all_kept,
    servers::{PORT, rude},
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
