//! Lines on standard error, which a server shares with its `serve`.

use std::{
    fs::OpenOptions,
    io::Write as _,
    os::{
        fd::OwnedFd,
        unix::{fs::OpenOptionsExt, net::UnixDatagram},
    },
    process::Command,
    time::Duration,
};

#[test]
fn output_line_is_one_write() {
    let directory = tempfile::tempdir().expect("a directory");
    let keys = directory.path().join("keys");
    let key = Command::new(env!("CARGO_BIN_EXE_outlive"))
        .arg("key")
        .output();
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).mode(0o600).open(&keys);
    let mut file = file.expect("a file");
    file.write_all(&key.expect("our own binary").stdout)
        .expect("written");
    for json in [true, false] {
        // Each write to the socket is a datagram.
        let (writes, stderr) = UnixDatagram::pair().expect("sockets");
        let patience = Some(Duration::from_secs(30));
        writes.set_read_timeout(patience).expect("a time limit");
        let mut logger = Command::new(env!("CARGO_BIN_EXE_outlive"))
            .args(["logger", "--listen", "127.0.0.1:0", "--key-file"])
            .arg(&keys)
            .args(json.then_some("--json"))
            .stderr(OwnedFd::from(stderr))
            .spawn()
            .expect("our own binary");
        let mut line = vec![0; 64 << 10];
        let length = writes.recv(&mut line).expect("it tells that it listens");
        let line = String::from_utf8_lossy(&line[..length]).into_owned();
        logger.kill().expect("ours");
        logger.wait().expect("ours");
        assert!(line.ends_with('\n'), "{line:?}");
        assert!(line.contains("127.0.0.1:"), "{line:?}");
    }
}
