//! Man pages and completions.

use std::{fs, process::Command};

fn outlive(arguments: &[&str]) -> std::process::Output {
    let program = Command::new(env!("CARGO_BIN_EXE_outlive"));
    let mut program = program;
    program.args(arguments).output().expect("it starts")
}

#[test]
fn each_command_has_a_page_and_the_hidden_one_has_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = outlive(&["man", &directory.path().to_string_lossy()]);
    assert!(output.status.success(), "{output:?}");
    let pages = ["man1", "man8"].map(|section| directory.path().join(section));
    let names: Vec<String> = pages
        .iter()
        .flat_map(|pages| fs::read_dir(pages).expect("it is there"))
        .map(|entry| {
            entry
                .expect("readable")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    for page in [
        "outlive.1",
        "outlive-serve.8",
        "outlive-logger.8",
        "outlive-logger-release.8",
        "outlive-lab-up.1",
    ] {
        assert!(names.contains(&page.to_owned()), "{page} of {names:?}");
    }
    assert!(
        !names.iter().any(|name| name.contains("process")),
        "{names:?}"
    );
    let serve = fs::read_to_string(pages[1].join("outlive-serve.8")).expect("readable");
    for heading in ["EXIT STATUS", "FILES", "EXAMPLES", "ENVIRONMENT"] {
        assert!(
            serve.contains(&format!(".SH {heading}"))
                || serve.contains(&format!(".SH \"{heading}\"")),
            "{heading}"
        );
    }
    assert!(serve.contains("logger\\-timeout"), "{serve}");
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let output = outlive(&["man", "/proc/nowhere"]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/proc/nowhere"), "{said}");
}

#[test]
fn shells_learn_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = outlive(&["completions", shell]);
        assert!(output.status.success(), "{output:?}");
        let script = String::from_utf8_lossy(&output.stdout);
        assert!(script.contains("on-logger-loss"), "{shell}");
    }
}
