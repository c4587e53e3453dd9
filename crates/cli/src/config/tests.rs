use std::{ffi::OsString, fs, path::PathBuf};

use clap::Parser;

use super::resolve;
use crate::{
    arguments::{Arguments, Logger, Serve, Verb},
    units,
};

struct Case {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

fn file(text: &str) -> Case {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("web.toml");
    fs::write(&path, text).expect("written");
    Case {
        _directory: directory,
        path,
    }
}

impl Case {
    fn line(&self, verb: &str, more: &[&str]) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["outlive".into(), verb.into(), "--config".into()];
        line.push(self.path.clone().into());
        line.extend(more.iter().map(OsString::from));
        line
    }

    fn parse(&self, verb: &str, more: &[&str]) -> Verb {
        let (line, path) = resolve(self.line(verb, more)).expect("a good file");
        assert_eq!(path.as_ref(), Some(&self.path));
        Arguments::try_parse_from(line).expect("good options").verb
    }

    fn serve(&self, more: &[&str]) -> Serve {
        match self.parse("serve", more) {
            Verb::Serve(serve) => *serve,
            other => panic!("{other:?}"),
        }
    }

    fn logger(&self, more: &[&str]) -> Logger {
        match self.parse("logger", more) {
            Verb::Logger(logger) => logger,
            other => panic!("{other:?}"),
        }
    }

    /// The error sentence after the name of the file.
    fn mistake(&self, verb: &str) -> String {
        let mistake = resolve(self.line(verb, &[]))
            .expect_err("a mistake")
            .to_string();
        let path = format!("{}:", self.path.display());
        let rest = mistake.strip_prefix(&path);
        rest.unwrap_or_else(|| panic!("{mistake}")).to_owned()
    }
}

const WEB: &str = r#"
address = ["10.0.0.10:80", "[fd00::10]:80"]
name = "web"
command = ["nginx", "-g", "daemon off;"]
logger = "10.0.0.9:7600"
key-file = "/etc/outlive/web.keys"
replay = "request"
ring-size = "64MiB"
limit-per-connection = 0x10_0000
quarantine-after = 5
verify-ignore-header = ["Date", "Set-Cookie"]
json = true
"#;

#[test]
fn config_file_suffices() {
    let serve = file(WEB).serve(&[]);
    assert_eq!(serve.address.len(), 2);
    assert_eq!(serve.name.as_deref(), Some("web"));
    assert_eq!(serve.command, ["nginx", "-g", "daemon off;"]);
    assert_eq!(serve.ring_size, 64 << 20);
    assert_eq!(serve.limit_per_connection, 1 << 20);
    assert_eq!(serve.quarantine_after, 5);
    assert_eq!(serve.verify_ignore_header, ["Date", "Set-Cookie"]);
    assert!(serve.json);
}

#[test]
fn command_line_wins() {
    let case = file(WEB);
    let serve = case.serve(&[
        "--address",
        "10.0.0.11:81",
        "--ring-size=1MiB",
        "--",
        "cat",
        "-u",
    ]);
    assert_eq!(
        serve.address,
        [units::addresses("10.0.0.11:81").expect("an address")]
    );
    assert_eq!(serve.ring_size, 1 << 20);
    assert_eq!(serve.command, ["cat", "-u"]);
    assert_eq!(serve.quarantine_after, 5);

    let logger =
        "listen = \"10.0.0.9:7600\"\nkey-file = \"keys\"\nack-delay = \"1ms\"\njson = false";
    let case = file(logger);
    let delayed = case.logger(&[]);
    assert!(delayed.ack_delay.is_some() && !delayed.ack_each_frame && !delayed.json);
    // An option of the file that contradicts the command line is dropped, too.
    let each = case.logger(&["--ack-each-frame"]);
    assert!(each.ack_delay.is_none() && each.ack_each_frame);
}

#[test]
fn mistakes_have_positions() {
    for (line, said) in [
        (
            "limit-pre-connection = 3",
            "2: \"limit-pre-connection\" is no option of outlive serve; the nearest is \"limit-per-connection\"",
        ),
        (
            "key_file = \"keys\"",
            "2: \"key_file\" is no option of outlive serve; the nearest is \"key-file\"",
        ),
        ("listen = \"10.0.0.9:7600\"", "2: \"listen\" is no option"),
        ("config = \"other\"", "2: \"config\" is no option"),
        ("[limits]\ntotal = 3", "2: \"limits\" is no option"),
        (
            "ring-size = \"64XB\"",
            "2: ring-size: \"XB\" is no unit of bytes",
        ),
        (
            "ring-size = 0.5",
            "2: ring-size: text is needed, and this is of type float",
        ),
        (
            "ring-size = true",
            "2: ring-size: text is needed, and this is of type boolean",
        ),
        (
            "ring-size = [\"1MiB\"]",
            "2: ring-size: text is needed, and this is of type array",
        ),
        (
            "name = 80",
            "2: name: text is needed, and this is of type integer",
        ),
        (
            "json = \"yes\"",
            "2: json: true or false is needed, and this is of type string",
        ),
        ("replay = \"turn\"", "2: replay: use connection, request"),
        (
            "quarantine-after = 0",
            "2: quarantine-after: 0 is not in 1..",
        ),
        (
            "quarantine-after = \"many\"",
            "2: quarantine-after: invalid digit",
        ),
        ("address = [\"10.0.0.10:80\",\n 7]", "2: address: "),
        (
            "address = \"10.0.0.10\"",
            "2: address: \"10.0.0.10\" is no address and port",
        ),
        ("logger = []", "2: logger: an empty list"),
        (
            "command = \"nginx -g\"",
            "2: command: a list, with each word by itself, is needed, and this is of type string",
        ),
        ("stop-timeout = 1\nstop-timeout = 2", "3: duplicate key"),
        ("stop-timeout =", "2: "),
    ] {
        let case = file(&format!("# what is served\n{line}\n"));
        let mistake = case.mistake("serve");
        assert!(mistake.starts_with(said), "{line:?}: {mistake}");
    }
}

#[test]
fn every_option_is_a_key() {
    use clap::CommandFactory;
    for verb in ["serve", "logger"] {
        let program = Arguments::command();
        let command = program.find_subcommand(verb).expect("a verb");
        for argument in command.get_arguments().filter(|a| a.get_id() != "config") {
            let name = argument.get_long().unwrap_or("command");
            // A table is no value of any option: an error about the value shows that the option is known.
            let mistake = file(&format!("{name} = {{}}")).mistake(verb);
            assert!(mistake.starts_with(&format!("1: {name}: ")), "{mistake}");
        }
    }
}

#[test]
fn example_files_are_valid() {
    let serve = file(include_str!("../../../../packaging/config/web.toml")).serve(&[]);
    assert_eq!(serve.logger.len(), 1);
    let logger = file(include_str!("../../../../packaging/config/logger.toml")).logger(&[]);
    assert!(logger.metrics.is_some());
    // The proposed options in the files, too.
    for (verb, text) in [
        (
            "serve",
            include_str!("../../../../packaging/config/web.toml"),
        ),
        (
            "logger",
            include_str!("../../../../packaging/config/logger.toml"),
        ),
    ] {
        let proposed: Vec<_> = text
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(option) if !option.starts_with(' ') => option,
                _ => line,
            })
            .collect();
        file(&proposed.join("\n")).parse(verb, &[]);
    }
}

#[test]
fn missing_file_is_named() {
    let mut case = file("");
    case.path.set_extension("none");
    let mistake = case.mistake("logger");
    assert!(mistake.contains("cannot be read"), "{mistake}");
}

#[test]
fn absent_file_changes_no_option() {
    for line in [
        &[
            "outlive",
            "serve",
            "--address",
            "10.0.0.10:80",
            "--",
            "cat",
            "--config",
            "x",
        ][..],
        &["outlive", "status", "--config", "x"],
        &["outlive"],
        &["outlive", "--help"],
        &["outlive", "nonsense"],
    ] {
        let line: Vec<OsString> = line.iter().map(OsString::from).collect();
        assert_eq!(resolve(line.clone()), Ok((line, None)));
    }
}
