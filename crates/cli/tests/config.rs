//! Options from a file, as the program takes them.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::OpenOptionsExt,
    process::{Command, Output, Stdio},
};

fn outlive(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_outlive"));
    program.args(arguments).output().expect("it starts")
}

#[test]
fn file_mistake_is_usage_error_with_position() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("web.toml");
    let path = path.to_string_lossy();
    for (text, said) in [
        (
            "\naddres = \"10.0.0.10:80\"",
            format!(
                "{path}:2: \"addres\" is no option of outlive serve; the nearest is \"address\""
            ),
        ),
        (
            "command = [\"cat\"]",
            format!("(options are also in {path})"),
        ),
        (
            "address = \"192.0.2.1:80\"\ncommand = [\"cat\"]\nring-size = 5",
            format!(
                "--ring-size must be a power of two from 1MiB to 1GiB (options are also in {path})"
            ),
        ),
    ] {
        fs::write(&*path, text).expect("written");
        let output = outlive(&["serve", "--config", &path]);
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(&said), "{stderr}");
    }
}

/// Of `--json` in a file, too.
#[test]
fn json_mistakes_are_json() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("web.toml");
    fs::write(&path, "json = true\naddress = \"10.0.0.10\"\n").expect("written");
    let path = path.to_string_lossy();
    for (arguments, status, code) in [
        (&["serve", "--json", "--devour"][..], 64, "usage"),
        (&["serve", "--json"], 64, "usage"),
        (&["serve", "--json", "--config", &path], 78, "config_file"),
        (
            &["serve", "--json", "--config", "/no/such"],
            78,
            "config_file",
        ),
        (
            &[
                "serve",
                "--json",
                "--address",
                "10.0.0.10:1",
                "--ring-size",
                "5",
                "--",
                "true",
            ],
            64,
            "options",
        ),
        (
            &["history", "--json", "--history", "/no/such"],
            64,
            "which_service",
        ),
        (
            &["lab", "status", "--json", "--lab-dir", "/no/such"],
            64,
            "no_lab",
        ),
        (
            &["lab", "status", "--json", "--name", "no/name"],
            64,
            "lab_refuses",
        ),
        (
            &["history", "--json", "--history", "/no/such", "web"],
            64,
            "no_history",
        ),
    ] {
        let output = outlive(arguments);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let error: serde_json::Value = serde_json::from_str(&stderr).expect("one line of JSON");
        assert_eq!(
            (&error["version"], &error["code"]),
            (&1.into(), &code.into()),
            "{stderr}"
        );
        assert!(!error["error"].to_string().contains('\u{1b}'), "{stderr}");
    }
    // Words of the server are not ours.
    let output = outlive(&["serve", "--", "server", "--json"]);
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("outlive: "));
}

/// The first mistake of who has not read the usage.
#[test]
fn missing_double_dash_is_explained() {
    for verb in ["serve", "standby"] {
        let output = outlive(&[
            verb,
            "--address",
            "10.0.0.1:80",
            "nginx",
            "-g",
            "daemon off;",
        ]);
        assert_eq!(output.status.code(), Some(64));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("behind `--`: -- nginx ..."), "{said}");
    }
    for (verb, word) in [("serve", "--devour"), ("status", "a")] {
        let output = outlive(&[verb, word, "b"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("behind `--`"), "{said}");
    }
}

#[test]
fn missing_service_is_explained() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().to_str().expect("text");
    for line in [
        ["history", "--history", place],
        ["events", "--run-dir", place],
    ] {
        let output = outlive(&line);
        assert_eq!(output.status.code(), Some(64));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains(place) && !said.contains("which service"),
            "{said}"
        );
    }
}

#[test]
fn logger_runs_from_config_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let keys = directory.path().join("keys");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).mode(0o600).open(&keys);
    std::io::Write::write_all(&mut file.expect("a file"), &outlive(&["key"]).stdout)
        .expect("written");
    let path = directory.path().join("logger.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\nkey-file = {:?}\nmetrics = \"127.0.0.1:0\"\njson = true\n",
        keys.display().to_string()
    );
    fs::write(&path, text).expect("written");
    let mut logger = Command::new(env!("CARGO_BIN_EXE_outlive"))
        .args(["logger", "--config"])
        .arg(&path)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let stderr = logger.stderr.take().expect("a pipe");
    BufReader::new(stderr).read_line(&mut line).expect("text");
    logger.kill().expect("it runs");
    logger.wait().expect("it ends");
    let event: serde_json::Value = serde_json::from_str(&line).expect("JSON, as the file says");
    assert_eq!(event["event"], "listening", "{line}");
}
