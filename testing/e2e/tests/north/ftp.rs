//! FTP servers, killed within files.

use std::{
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Output,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Protected, Scene, Seed, assert_same_bytes,
    clients::curl,
    exchange::{assert_all_recovered, assert_untouched},
    pair::{FailOver, Pair, addresses},
    pattern,
    servers::{BIG_FILE_BYTES, PASSIVE_PORTS, SERVER_PORT, Server, ftp, vsftpd, vsftpd_at},
};

use lab::Signal;

use super::{
    STATEFUL_REQUIRE, await_condition, kill_repeatedly,
    process_per_connection::{kill_all_and_then_children, kill_main_then_children},
    upstream::{assert_upstream_recovered, outgoing},
    with_clients,
};

/// The server connects to the client for each file.
const ACTIVE_MODE_FLAGS: [&str; 2] = ["--ftp-port", "-"];

#[test]
fn ftp_continues_within_files() {
    // With two clients at once pyftpdlib itself sometimes forgets a client. At the end of a session pyftpdlib stops
    // watching the file descriptor of the data connection, which already belongs to the other session.
    continues_within_files("ftp", ftp, 1);
}

#[test]
fn vsftpd_continues_within_files() {
    continues_within_files("vsftpd", |scene| vsftpd(scene, ISOLATE_SETTING), 2);
}

/// Active mode.
fn continues_within_files(label: &str, make: fn(&Scene) -> Server, clients: usize) {
    const KILL_COUNT: usize = 5;
    let scene = Scene::new(label);
    // A small buffer: the client's kernel cannot take a whole file at once.
    let room = scene
        .client
        .sysctl("net.ipv4.tcp_rmem", "4096 131072 262144");
    room.expect("a kernel parameter");
    let server = scene.protect_with(&make(&scene), &STATEFUL_REQUIRE);
    let seed = &mut Seed::choose(label);
    let (url, big) = (
        format!("ftp://{}/big.bin", scene.ipv4(SERVER_PORT)),
        pattern(BIG_FILE_BYTES),
    );
    let client = |_, ends: &AtomicBool| {
        while !ends.load(Ordering::Relaxed) {
            let more = ["--limit-rate", "8M", url.as_str()];
            let got = ask(&scene, &[&ACTIVE_MODE_FLAGS[..], &more].concat());
            assert_same_bytes("curl", &big, &got);
        }
    };
    with_clients(clients, client, || {
        kill_repeatedly(&server, KILL_COUNT, seed);
        // Whether a kill hits a file depends on the moment: in the end, a kill has hit a file.
        let mut kills = KILL_COUNT;
        await_condition("a file was on its way at a death", || {
            let has_hit = !outgoing(&server).is_empty();
            if !has_hit {
                kills += 1;
                server.kill_main(Signal::KILL);
                server.wait_serving(kills);
            }
            has_hit
        });
    });
    assert_all_recovered(&server);
    assert_upstream_recovered(&server);
}

/// The standard output of curl.
#[track_caller]
fn ask(scene: &Scene, arguments: &[&str]) -> Vec<u8> {
    let got = curl(scene, arguments);
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(got.status.success(), "{arguments:?}: {said}");
    got.stdout
}

/// Processes of vsftpd are the first processes in namespaces of their own.
const ISOLATE_SETTING: &str = "isolate=YES";

/// The default settings: a session has three processes in namespaces of their own. They ask for the password, serve
/// the client, and make the data connections.
const MULTI_PROCESS_SETTINGS: &str =
    "one_process_model=NO\nlocal_enable=YES\nconnect_from_port_20=YES";

/// vsftpd, with the ports of passive mode protected.
fn protect(scene: &Scene, more: &str) -> Protected {
    let [first, last] = PASSIVE_PORTS;
    let range = format!("{}-{last}", scene.ipv4(first));
    let flags = [&STATEFUL_REQUIRE[..], &["--address", &range]].concat();
    scene.protect_with(&vsftpd(scene, more), &flags)
}

/// Uploads a file of `size` bytes as `name`, and downloads the file again, both limited to `rate` bytes a second.
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

/// Clients that store and fetch files in either mode get whole files, for a kill of any process of the server.
#[test]
fn vsftpd_has_uploaded_files() {
    keeps_uploaded_files("vsftpdput", "", kill_all_and_then_children, 6);
}

/// The same for sessions of several processes.
#[test]
fn debian_vsftpd_has_uploaded_files() {
    keeps_uploaded_files(
        "vsftpdthree",
        MULTI_PROCESS_SETTINGS,
        kill_main_then_children,
        3,
    );
}

/// A temporary PAM service that asks for the user's name, and accepts any password.
struct Pam(String);

impl Pam {
    fn new() -> Self {
        let name = format!("outlive-e2e-{}", std::process::id());
        let all =
            ["auth", "account", "session"].map(|what| format!("{what} required pam_permit.so\n"));
        fs::write(Path::new(PAM_DIRECTORY).join(&name), all.concat()).expect("a service of PAM");
        Self(name)
    }
}

impl Drop for Pam {
    fn drop(&mut self) {
        let _ = fs::remove_file(Path::new(PAM_DIRECTORY).join(&self.0));
    }
}

const PAM_DIRECTORY: &str = "/etc/pam.d";

/// A user of the host, known to PAM, with an unchanged home directory.
#[test]
fn vsftpd_continues_with_local_user() {
    let scene = Scene::new("vsftpdpam");
    let pam = Pam::new();
    let root = scene.directory().join("www");
    let more = format!(
        "{MULTI_PROCESS_SETTINGS}\npam_service_name={}\nlocal_root={}\nanonymous_enable=NO",
        pam.0,
        root.display()
    );
    let server = protect(&scene, &more);
    let seed = &mut Seed::choose("vsftpdpam");
    let client = |_, ends: &AtomicBool| {
        let mut files = 0;
        while !ends.load(Ordering::Relaxed) {
            let size = [64, 2 << 20][files % 2];
            let name = format!("pam-{files}");
            let mode = ["--user", "daemon:any"];
            put_and_get(&scene, scene.ipv4(SERVER_PORT), &mode, &name, size, "4M");
            files += 1;
        }
    };
    with_clients(1, client, || kill_repeatedly(&server, 4, seed));
    assert_all_recovered(&server);
}

/// A client in each mode: a session stores and fetches a small file and a large file. Retries are forbidden.
#[test]
fn lftp_sees_no_crash() {
    let scene = Scene::new("lftp");
    let server = protect(&scene, MULTI_PROCESS_SETTINGS);
    let seed = &mut Seed::choose("lftp");
    let files = AtomicUsize::new(0);
    let client = |which, ends: &AtomicBool| {
        while !ends.load(Ordering::Relaxed) {
            let number = files.fetch_add(2, Ordering::Relaxed);
            put_and_get_by_lftp(&scene, which == 0, number);
        }
    };
    with_clients(2, client, || kill_repeatedly(&server, 6, seed));
    assert_all_recovered(&server);
    // Whether a kill hits an active-mode connection depends on the moment.
    assert_upstream_recovered(&server);
}

fn put_and_get_by_lftp(scene: &Scene, passive: bool, number: usize) {
    let mut script = format!(
        "set cmd:fail-exit yes; set net:max-retries 1; set net:timeout 120; set net:limit-rate 4000000; \
         set ftp:passive-mode {passive}; set ftp:use-site-utime no; open ftp://{}; cd up;",
        scene.ipv4(SERVER_PORT)
    );
    let mut all = Vec::new();
    for (number, size) in (number..).zip([64, 3 << 20]) {
        let content = pattern(size);
        let name = format!("lftp-{number}");
        let file = scene.write(&format!("put/{name}"), &content);
        let again = file.with_extension("again");
        let (from, to) = (file.display(), again.display());
        write!(script, " put {from}; get {name} -o {to};").expect("text");
        all.push((name, content, file, again));
    }
    let got = scene.client.command("lftp").args(["-c", &script]).output();
    let got = got.expect("lftp");
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(got.status.success(), "{script}: {said}");
    for (name, content, file, again) in all {
        let there = fs::read(scene.directory().join("www/up").join(&name)).expect("a file");
        assert_same_bytes(&name, &content, &there);
        let again = fs::read(again).expect("it was got");
        assert_same_bytes(&name, &content, &again);
        remove(&file);
    }
}

fn keeps_uploaded_files(
    label: &str,
    more: &str,
    kill: impl FnOnce(&Protected, usize, &mut Seed),
    kills: usize,
) {
    let scene = Scene::new(label);
    let server = protect(&scene, more);
    let recording = scene.record(SERVER_PORT);
    let seed = &mut Seed::choose(label);
    let modes = [&[][..], &ACTIVE_MODE_FLAGS, &["--disable-epsv"]];
    let client = |which: usize, ends: &AtomicBool| {
        let mut files = 0;
        while !ends.load(Ordering::Relaxed) {
            let size = [64, 70_000, 4 << 20][files % 3];
            let name = format!("{which}-{files}");
            put_and_get(
                &scene,
                scene.ipv4(SERVER_PORT),
                modes[which],
                &name,
                size,
                "4M",
            );
            files += 1;
        }
        2 * files
    };
    let connections = with_clients(modes.len(), client, || kill(&server, kills, seed));
    assert_all_recovered(&server);
    await_condition("the server has ended what its clients have", || {
        !has_unanswered_ends(&scene)
    });
    assert_untouched(recording, connections.iter().sum());
}

/// Whether an ended client still waits for the server's FIN.
fn has_unanswered_ends(scene: &Scene) -> bool {
    let states = ["state", "fin-wait-1", "state", "fin-wait-2"];
    let mut list = scene.client.command("ss");
    let list = list.args(["-Htn"]).args(states).output().expect("ss");
    assert!(list.status.success(), "{list:?}");
    !list.stdout.is_empty()
}

#[test]
fn vsftpd_continues_within_large_file() {
    const LARGE_FILE_BYTES: usize = 100_000_000;
    let scene = Scene::new("vsftpdbig");
    let server = protect(&scene, "");
    let seed = &mut Seed::choose("vsftpdbig");
    let client = |_, _: &AtomicBool| {
        put_and_get(
            &scene,
            scene.ipv4(SERVER_PORT),
            &[],
            "large",
            LARGE_FILE_BYTES,
            "30M",
        );
    };
    with_clients(1, client, || kill_repeatedly(&server, 6, seed));
    assert_all_recovered(&server);
}

/// In passive mode the clients open all connections.
#[test]
fn vsftpd_survives_power_off() {
    survives_power_off("vsftpdhosts", "", &[]).stop();
}

#[test]
fn debian_vsftpd_survives_power_off() {
    survives_power_off("vsftpdthreehosts", MULTI_PROCESS_SETTINGS, &[]).stop();
}

/// The server connects to the clients, from a port that the kernel of the lost host chose.
#[test]
fn vsftpd_active_mode_survives_power_off() {
    let pair = survives_power_off("vsftpdback", "", &ACTIVE_MODE_FLAGS);
    let hosts = [&pair.first, &pair.second];
    assert_ne!(hosts.map(assert_upstream_recovered), [0, 0]);
    pair.stop();
}

/// Both hosts have the files. The dying host must not have written data that the other host does not know.
fn survives_power_off(label: &str, more: &str, mode: &[&str]) -> Pair {
    let ([address, _], [first, last]) = (addresses(), PASSIVE_PORTS);
    let range = format!("{}:{first}-{last}", address.ip());
    let flags = [
        &STATEFUL_REQUIRE[..],
        &["--output-commit=all", "--address", &range],
    ]
    .concat();
    let mut pair = Pair::with(label, &[], &flags, |scene| vsftpd_at(scene, address, more));
    let seed = &mut Seed::choose(label);
    let both = Both::begin(&pair.scene, address, mode);
    for way in [FailOver::PowerOff, FailOver::Switchover, FailOver::PowerOff] {
        thread::sleep(Duration::from_millis(seed.between(300, 800) as u64));
        pair.fail_over(way);
    }
    both.finish();
    pair
}

/// The `serve` after a killed `serve` holds no upstream connection, and the server's transfers continue.
#[test]
fn vsftpd_continues_within_files_under_next_serve() {
    let scene = Scene::new("vsftpdserve");
    let definition = vsftpd(&scene, "");
    let mut server = scene.protect_with(&definition, &STATEFUL_REQUIRE);
    let both = Both::begin(&scene, scene.ipv4(SERVER_PORT), &ACTIVE_MODE_FLAGS);
    server.kill_serve_itself();
    server.succeed(&scene, &definition, &STATEFUL_REQUIRE);
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    both.finish();
    assert_all_recovered(&server);
    assert_ne!(assert_upstream_recovered(&server), 0);
}

/// A client that uploads a file, and a client that downloads a file.
struct Both {
    clients: [thread::JoinHandle<Output>; 2],
    /// The received files: of the upload at the server, of the download at the client.
    there: [PathBuf; 2],
}

impl Both {
    /// Both are in the middle.
    #[track_caller]
    fn begin(scene: &Scene, address: SocketAddr, mode: &[&str]) -> Self {
        let file = scene.write("put/file", pattern(BIG_FILE_BYTES));
        let there = ["www/up/file", "put/got"].map(|name| scene.directory().join(name));
        let curl = |path: &str, option: &str, file: &Path| {
            let mut curl = scene.client.command("curl");
            curl.args(["-sS", "--limit-rate", "3M"]).args(mode);
            curl.arg(option).arg(file);
            curl.arg(format!("ftp://{address}/{path}"));
            thread::spawn(move || curl.output().expect("curl"))
        };
        let clients = [
            curl("up/file", "--upload-file", &file),
            curl("big.bin", "--output", &there[1]),
        ];
        let has_begun = |file: &PathBuf| fs::metadata(file).is_ok_and(|file| file.len() > 0);
        await_condition("both are in the middle", || there.iter().all(has_begun));
        Self { clients, there }
    }

    #[track_caller]
    fn finish(self) {
        for client in self.clients {
            let output = client.join().expect("a client");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
        }
        for (who, file) in ["vsftpd", "curl"].into_iter().zip(&self.there) {
            assert_same_bytes(
                who,
                &pattern(BIG_FILE_BYTES),
                &fs::read(file).expect("a file"),
            );
        }
    }
}

/// A new client is greeted at any stage of the session's processes, while other clients leave.
#[test]
fn vsftpd_greets_new_client() {
    greets_new_client("vsftpdgreet", "");
}

#[test]
fn debian_vsftpd_greets_new_client() {
    greets_new_client("vsftpdthreegreet", MULTI_PROCESS_SETTINGS);
}

fn greets_new_client(label: &str, more: &str) {
    let scene = Scene::new(label);
    let server = protect(&scene, more);
    let seed = &mut Seed::choose(label);
    for kill in 1..=8 {
        let mut clients: Vec<_> = (0..5).map(|_| scene.connect(SERVER_PORT)).collect();
        thread::sleep(Duration::from_millis(seed.between(0, 30) as u64));
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
        for (number, client) in clients.iter_mut().enumerate() {
            let mut heard = [0; 4];
            let read = client.read_exact(&mut heard);
            assert!(
                read.is_ok() && &heard == b"220 ",
                "{number} after kill {kill}: {read:?} {heard:?}"
            );
        }
    }
    assert_all_recovered(&server);
}

/// vsftpd's sandbox forbids calls of the shim. The standard error of vsftpd's processes is the client's connection,
/// and no message may get there.
#[test]
fn unreplayable_vsftpd_is_refused() {
    let scene = Scene::new("vsftpdref");
    let mut server = scene.protect_with(&vsftpd(&scene, "seccomp_sandbox=YES"), &STATEFUL_REQUIRE);
    let mut client = scene.connect(SERVER_PORT);
    let words = b"USER anonymous\r\nPASS nobody\r\n";
    let _ = client.write_all(words); // it may be over
    let mut heard = Vec::new();
    let _ = client.read_to_end(&mut heard);
    let heard = String::from_utf8_lossy(&heard);
    let is_answer = |line: &str| line.starts_with("220 ") || line.starts_with("331 ");
    assert!(heard.lines().all(is_answer), "{heard:?}");
    let status = server.ended(e2e::EVENT_TIMEOUT).expect("it ends");
    assert_eq!(status.code(), Some(78), "{}", server.log());
    server.assert_nothing_left();
}
