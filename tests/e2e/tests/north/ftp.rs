//! FTP, in the middle of files.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Protected, Scene, Seed, assert_same_bytes,
    clients::curl,
    exchange::{assert_all_kept, assert_untouched},
    pair::{FailOver, Pair, addresses},
    pattern,
    servers::{BIG, PASSIVE, PORT, Server, ftp, vsftpd, vsftpd_at},
};

use super::{
    REQUIRE, forking::kill_all_and_then_children, kill_again_and_again,
    outgoing::assert_kept_to_others,
};

/// The server connects to its client for each file.
const ACTIVE: [&str; 2] = ["--ftp-port", "-"];

#[test]
fn ftp_goes_on_in_the_middle_of_files() {
    // With two clients at once pyftpdlib itself forgets one now and then: at the end of a session it stops watching the
    // number that its data connection had, which is the other's by then.
    goes_on_in_the_middle_of_files("ftp", ftp, 1);
}

#[test]
fn vsftpd_goes_on_in_the_middle_of_files() {
    goes_on_in_the_middle_of_files("vsftpd", |scene| vsftpd(scene, ISOLATED), 2);
}

/// Active mode.
fn goes_on_in_the_middle_of_files(label: &str, make: fn(&Scene) -> Server, clients: usize) {
    const KILLS: usize = 5;
    let scene = Scene::new(label);
    // Small, so that a file is not with the client's kernel at once.
    let room = scene
        .client
        .sysctl("net.ipv4.tcp_rmem", "4096 131072 262144");
    room.expect("a kernel parameter");
    let server = scene.protect_with(&make(&scene), &REQUIRE);
    let seed = &mut Seed::choose(label);
    let ends = AtomicBool::new(false);
    let url = format!("ftp://{}/big.bin", scene.ipv4(PORT));
    let (scene, ends, url, big) = (&scene, &ends, &url, &pattern(BIG));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
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
    assert_ne!(assert_kept_to_others(&server), 0);
}

/// What curl gets.
#[track_caller]
fn ask(scene: &Scene, arguments: &[&str]) -> Vec<u8> {
    let got = curl(scene, arguments);
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(got.status.success(), "{arguments:?}: {said}");
    got.stdout
}

/// Processes of vsftpd's are the first in namespaces of their own.
const ISOLATED: &str = "isolate=YES";

/// vsftpd, with the ports of passive mode protected.
fn protect(scene: &Scene) -> Protected {
    let [first, last] = PASSIVE;
    let range = format!("{}-{last}", scene.ipv4(first));
    let flags = [&REQUIRE[..], &["--address", &range]].concat();
    scene.protect_with(&vsftpd(scene, ""), &flags)
}

/// Puts a file of this size there, with this name, and gets it again: both at most so fast, in bytes a second.
fn put_and_get(
    scene: &Scene,
    address: SocketAddr,
    mode: &[&str],
    name: &str,
    size: usize,
    rate: &str,
) {
    let content = pattern(size);
    let file = scene.write(&format!("put/{name}"), &content);
    let url = format!("ftp://{address}/up/{name}");
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
                        put_and_get(scene, scene.ipv4(PORT), mode, &name, size, "4M");
                        files += 1;
                    }
                    2 * files
                })
            })
            .collect();
        kill_all_and_then_children(&server, 6, seed);
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
        let client =
            scope.spawn(move || put_and_get(scene, scene.ipv4(PORT), &[], "large", LARGE, "30M"));
        kill_again_and_again(&server, 6, seed);
        client.join().expect("a client");
    });
    assert_all_kept(&server);
}

/// In passive mode all connections are its clients'. Both hosts have the files, of which the one that dies is to have written
/// nothing that the other does not know.
#[test]
fn vsftpd_goes_on_where_its_host_has_ended() {
    let ([address, _], [first, last]) = (addresses(), PASSIVE);
    let range = format!("{}:{first}-{last}", address.ip());
    let flags = [&REQUIRE[..], &["--commit-effects", "--address", &range]].concat();
    let mut pair = Pair::with("vsftpdhosts", &[], &flags, |scene| {
        vsftpd_at(scene, address, "")
    });
    let (seed, big) = (&mut Seed::choose("vsftpdhosts"), pattern(BIG));
    let file = pair.scene.write("put/file", &big);
    let there = pair.scene.directory().join("www/up/file");
    let host = &pair.scene.client.clone();
    let curl = |path: &str, more: &[&str]| {
        let mut curl = host.command("curl");
        curl.args(["-sS", "--limit-rate", "3M"]).args(more);
        curl.arg(format!("ftp://{address}/{path}"));
        curl
    };
    let put = curl("up/file", &["--upload-file", &file.to_string_lossy()]);
    thread::scope(|scope| {
        let both = [put, curl("big.bin", &[])];
        let both = both.map(|mut curl| scope.spawn(move || curl.output().expect("curl")));
        for way in [FailOver::PowerOff, FailOver::Move, FailOver::PowerOff] {
            thread::sleep(Duration::from_millis(seed.between(300, 800) as u64));
            pair.fail_over(way);
        }
        let [put, got] = both.map(|one| one.join().expect("a client"));
        for one in [&put, &got] {
            let said = String::from_utf8_lossy(&one.stderr);
            assert!(one.status.success(), "{said}");
        }
        assert_same_bytes("curl", &big, &got.stdout);
    });
    assert_same_bytes("vsftpd", &big, &fs::read(there).expect("a file"));
    pair.stop();
}

/// Its sandbox forbids calls that the library makes, and its other model has processes that go on with each other's connections. What
/// its processes know as their standard error is the client's connection, which hears nothing of that.
#[test]
fn vsftpd_that_cannot_be_replayed_is_refused() {
    for option in ["seccomp_sandbox=YES", "one_process_model=NO"] {
        let scene = Scene::new("vsftpdref");
        let mut server = scene.protect_with(&vsftpd(&scene, option), &REQUIRE);
        let mut client = scene.connect(PORT);
        let words = b"USER anonymous\r\nPASS nobody\r\n";
        let _ = client.write_all(words); // it may be over
        let mut heard = Vec::new();
        let _ = client.read_to_end(&mut heard);
        let heard = String::from_utf8_lossy(&heard);
        let is_answer = |line: &str| line.starts_with("220 ") || line.starts_with("331 ");
        assert!(heard.lines().all(is_answer), "{heard:?}");
        let status = server.ended(e2e::PATIENCE).expect("it ends");
        assert_eq!(status.code(), Some(3), "{}", server.said());
        server.assert_nothing_left();
    }
}
