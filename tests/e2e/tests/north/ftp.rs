//! FTP, in the middle of files.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Protected, Scene, Seed, assert_same_bytes,
    clients::curl,
    exchange::{assert_all_kept, assert_untouched},
    pattern,
    servers::{BIG, PASSIVE, PORT, Server, ftp, vsftpd},
};

use super::{REQUIRE, forking::kill_a_child, kill_again_and_again, outgoing::outgoing};

/// The server connects to its client for each file.
const ACTIVE: [&str; 2] = ["--ftp-port", "-"];

#[test]
fn ftp_goes_on_in_the_middle_of_files() {
    goes_on_in_the_middle_of_files("ftp", ftp);
}

#[test]
fn vsftpd_goes_on_in_the_middle_of_files() {
    goes_on_in_the_middle_of_files("vsftpd", vsftpd);
}

/// Active mode.
fn goes_on_in_the_middle_of_files(label: &str, make: fn(&Scene) -> Server) {
    const KILLS: usize = 5;
    let scene = Scene::new(label);
    let server = scene.protect_with(&make(&scene), &REQUIRE);
    let seed = &mut Seed::choose(label);
    let ends = AtomicBool::new(false);
    let url = format!("ftp://{}/big.bin", scene.ipv4(PORT));
    let (scene, ends, url, big) = (&scene, &ends, &url, &pattern(BIG));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    while !ends.load(Ordering::Relaxed) {
                        let more = ["--limit-rate", "8M", url.as_str()];
                        let got = ask(scene, &[&ACTIVE[..], &more].concat());
                        assert_same_bytes("curl", big, &got);
                    }
                })
            })
            .collect();
        kill_again_and_again(&server, KILLS, seed);
        ends.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a client");
        }
    });
    assert_all_kept(&server);
    let all = outgoing(&server);
    let were_kept = |(kept, reset): &(u64, u64)| *kept > 0 && *reset == 0;
    assert!(!all.is_empty() && all.iter().all(were_kept), "{all:?}");
}

/// What curl gets.
#[track_caller]
fn ask(scene: &Scene, arguments: &[&str]) -> Vec<u8> {
    let got = curl(scene, arguments);
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(got.status.success(), "{arguments:?}: {said}");
    got.stdout
}

/// vsftpd, with the ports of passive mode protected.
fn protect(scene: &Scene) -> Protected {
    let [first, last] = PASSIVE;
    let range = format!("{}-{last}", scene.ipv4(first));
    let flags = [&REQUIRE[..], &["--address", &range]].concat();
    scene.protect_with(&vsftpd(scene), &flags)
}

/// Puts a file of this size there, with this name, and gets it again: both at most so fast, in bytes a second.
fn put_and_get(scene: &Scene, mode: &[&str], name: &str, size: usize, rate: &str) {
    let content = pattern(size);
    let file = scene.write(&format!("put/{name}"), &content);
    let url = format!("ftp://{}/up/{name}", scene.ipv4(PORT));
    let rate = ["--limit-rate", rate, url.as_str()];
    let put = ["--upload-file", &file.to_string_lossy()];
    ask(scene, &[mode, &put, &rate].concat());
    let there = fs::read(scene.directory().join("www/up").join(name)).expect("a file");
    assert_same_bytes(name, &content, &there);
    assert_same_bytes(name, &content, &ask(scene, &[mode, &rate].concat()));
    remove(&file);
}

fn remove(file: &Path) {
    fs::remove_file(file).expect("it was there");
}

/// Whoever puts and gets files in either mode has all of them, whichever process of the server is killed.
#[test]
fn vsftpd_has_what_was_put_there() {
    let scene = Scene::new("vsftpdput");
    let server = protect(&scene);
    let recording = scene.record(PORT);
    let seed = &mut Seed::choose("vsftpdput");
    let ends = AtomicBool::new(false);
    let (scene, ends) = (&scene, &ends);
    let connections = thread::scope(|scope| {
        let modes = [&[][..], &ACTIVE, &["--disable-epsv"]];
        let clients: Vec<_> = (0..)
            .zip(modes)
            .map(|(client, mode)| {
                scope.spawn(move || {
                    let mut files = 0;
                    while !ends.load(Ordering::Relaxed) {
                        let size = [64, 70_000, 4 << 20][files % 3];
                        let name = format!("{client}-{files}");
                        put_and_get(scene, mode, &name, size, "4M");
                        files += 1;
                    }
                    2 * files
                })
            })
            .collect();
        kill_again_and_again(&server, 6, seed);
        for kill in 7..=9 {
            thread::sleep(Duration::from_millis(seed.between(100, 500) as u64));
            kill_a_child(&server);
            server.wait_serving(kill);
        }
        ends.store(true, Ordering::Relaxed);
        let clients = clients.into_iter();
        clients.map(|one| one.join().expect("a client")).sum()
    });
    assert_all_kept(&server);
    assert_untouched(recording, connections);
}

#[test]
fn vsftpd_goes_on_in_a_large_file() {
    const LARGE: usize = 100_000_000;
    let scene = Scene::new("vsftpdbig");
    let server = protect(&scene);
    let seed = &mut Seed::choose("vsftpdbig");
    let scene = &scene;
    thread::scope(|scope| {
        let client = scope.spawn(move || put_and_get(scene, &[], "large", LARGE, "30M"));
        kill_again_and_again(&server, 6, seed);
        client.join().expect("a client");
    });
    assert_all_kept(&server);
}
