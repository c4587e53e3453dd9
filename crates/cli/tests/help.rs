//! The help of every command, word by word: a change of words is seen in review, and no option comes or goes unseen.
//!
//! A change writes the new texts: `INSTA_UPDATE=always cargo test -p outlive --test help`.

use std::process::Command;

/// Texts are broken at this column, whatever the terminal of the test.
const COLUMNS: &str = "100";

fn help_of(command: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_outlive"));
    program.args(command).arg("--help").env("COLUMNS", COLUMNS);
    let output = program.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The names in the section of commands.
fn commands_in(help: &str) -> Vec<String> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let section = section.take_while(|line| !line.is_empty() && !line.ends_with(':'));
    let names = section.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    let begins = |name: &&str| name.starts_with(|first: char| first.is_ascii_lowercase());
    names.filter(begins).map(str::to_owned).collect()
}

fn compare(command: &[&str]) {
    let help = help_of(command);
    let name = [&["outlive"], command].concat().join("-");
    insta::assert_snapshot!(name, help);
    for next in commands_in(&help) {
        if next != "help" {
            compare(&[command, &[&next]].concat());
        }
    }
}

#[test]
fn every_command_has_its_help() {
    compare(&[]);
}
