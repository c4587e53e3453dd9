//! A killed server that does not end: a thread waits in the kernel for a file system that does not answer.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use e2e::Scene;
use e2e::clients::{read_exactly, write};
use e2e::servers::{self, SERVER_PORT};
use lab::Signal;

/// A file system without an answer: each lookup waits until this process ends. The process prints a line at a lookup.
const MUTE_FILESYSTEM_SCRIPT: &str = r#"
import ctypes, os, struct, sys
fuse = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other"
if libc.mount(b"mute", sys.argv[1].encode(), b"fuse", 0, options.encode()):
    raise OSError(ctypes.get_errno(), "mount")
print("mounted", flush=True)
while True:
    asked = os.read(fuse, 1 << 20)
    length, operation, number = struct.unpack("=IIQ", asked[:16])
    if operation == 26: # FUSE_INIT
        answer = struct.pack("=IIIIHHII", 7, 31, 0, 0, 12, 10, 4096, 1).ljust(64, b"\0")
        os.write(fuse, struct.pack("=IiQ", 16 + len(answer), 0, number) + answer)
    elif operation == 1: # FUSE_LOOKUP
        print("asked", flush=True)
"#;

struct Mute {
    process: Child,
    says: BufReader<ChildStdout>,
    at: PathBuf,
}

impl Mute {
    fn mounted(scene: &Scene) -> Self {
        let at = scene.directory().join("mute");
        fs::create_dir(&at).expect("a directory");
        let mut process = Command::new("/usr/bin/python3");
        let process = process
            .args(["-c", MUTE_FILESYSTEM_SCRIPT])
            .arg(&at)
            .stdout(Stdio::piped());
        let mut process = process.spawn().expect("python");
        let says = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut mute = Self { process, says, at };
        mute.says("mounted");
        mute
    }

    fn says(&mut self, word: &str) {
        let mut line = String::new();
        self.says.read_line(&mut line).expect("it speaks");
        assert_eq!(line.trim(), word);
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// Echoes for each client, and looks up a file when a client asks for that.
const LOOKUP_SERVER_SCRIPT: &str = r#"
import os, socket, sys, threading
def serve(client):
    while said := client.recv(4):
        client.sendall(said)
        if said == b"look":
            os.path.exists(os.path.join(sys.argv[3], "anything"))
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    client, _ = listener.accept()
    threading.Thread(target=serve, args=(client,), daemon=True).start()
"#;

#[test]
fn unkillable_server_is_named() {
    let scene = Scene::new("unended");
    let mut mute = Mute::mounted(&scene);
    let script = scene.write("looks.py", LOOKUP_SERVER_SCRIPT);
    let mut server = servers::test_server(&scene);
    let address = scene.ipv4(SERVER_PORT);
    let words = [
        "/usr/bin/python3",
        &script.to_string_lossy(),
        &address.ip().to_string(),
        &SERVER_PORT.to_string(),
        &mute.at.to_string_lossy(),
    ];
    (server.addresses, server.command) = (vec![address], words.map(str::to_owned).to_vec());
    let protected = scene.protect(&server);
    let client: TcpStream = scene.connect(SERVER_PORT);
    write(&client, b"here");
    assert_eq!(read_exactly(&client, 4), b"here");
    let looks = scene.connect(SERVER_PORT);
    write(&looks, b"look");
    assert_eq!(read_exactly(&looks, 4), b"look");
    mute.says("asked");
    let pid = protected.main_pid();
    protected.kill_main(Signal::KILL);
    let told = protected.wait_for("warning", 1);
    assert_eq!(told["code"], "server_not_ended", "{told}");
    let reason = told["reason"].to_string();
    assert!(reason.contains(&pid.as_raw_nonzero().to_string()), "{told}");
    drop(looks);
    drop(mute);
    protected.wait_serving(1);
    write(&client, b"then");
    assert_eq!(read_exactly(&client, 4), b"then");
    drop(client);
    protected.stop();
}
