//! Man pages and completions.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn outlive(arguments: &[&str]) -> std::process::Output {
    let program = Command::new(env!("CARGO_BIN_EXE_outlive"));
    let mut program = program;
    program.args(arguments).output().expect("it starts")
}

#[test]
fn visible_commands_have_man_pages() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = outlive(&["man", &directory.path().to_string_lossy()]);
    assert!(output.status.success(), "{output:?}");
    let pages = ["man1", "man8", "man5", "man7"].map(|section| directory.path().join(section));
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
        "outlive-balance.8",
        "outlive-lab-up.1",
        "outlive.toml.5",
        "outlive-events.7",
    ] {
        assert!(names.contains(&page.to_owned()), "{page} of {names:?}");
    }
    assert!(
        !names.iter().any(|name| name.contains("process")),
        "{names:?}"
    );
    let serve = fs::read_to_string(pages[1].join("outlive-serve.8")).expect("readable");
    for heading in [
        "SYNOPSIS",
        "EXIT STATUS",
        "FILES",
        "EXAMPLES",
        "ENVIRONMENT",
        "SEE ALSO",
    ] {
        assert!(
            serve.contains(&format!(".SH {heading}"))
                || serve.contains(&format!(".SH \"{heading}\"")),
            "{heading}"
        );
    }
    assert!(serve.contains("logger\\-timeout"), "{serve}");
    let synopsis = "\\fB\\-\\-address\\fR \\fIADDRESS:PORT[\\-PORT]\\fR...";
    assert!(serve.contains(synopsis), "{serve}");
    let toml = fs::read_to_string(pages[2].join("outlive.toml.5")).expect("readable");
    assert!(
        toml.contains("\\fBlimit\\-total\\fR \\fIBYTES\\fR"),
        "{toml}"
    );
    let events = fs::read_to_string(pages[3].join("outlive-events.7")).expect("readable");
    for word in [
        "\\fBdied\\fR \\fIcause, detected_ms\\fR",
        "\\fBno_takeover\\fR",
    ] {
        assert!(events.contains(word), "{word}: {events}");
    }
}

#[test]
fn man_pages_have_exit_status_and_examples() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = outlive(&["man", &directory.path().to_string_lossy()]);
    assert!(output.status.success(), "{output:?}");
    for page in [
        "man1/outlive-speculate.1",
        "man1/outlive-lab.1",
        "man1/outlive-lab-exec.1",
        "man1/outlive-make.1",
        "man8/outlive-balance.8",
        "man8/outlive-check.8",
        "man8/outlive-events.8",
        "man8/outlive-logger.8",
        "man8/outlive-serve.8",
        "man8/outlive-standby.8",
        "man8/outlive-status.8",
    ] {
        let text = fs::read_to_string(directory.path().join(page)).expect("readable");
        for heading in [
            ".SH \"EXIT STATUS\"",
            ".SH \"FILES\"",
            ".SH EXAMPLES",
            ".SH \"SEE ALSO\"",
        ] {
            assert!(text.contains(heading), "{page} without {heading}");
        }
    }
    // Groups of options are subsections of the options.
    let serve = directory.path().join("man8/outlive-serve.8");
    let serve = fs::read_to_string(serve).expect("readable");
    assert!(serve.contains(".SS \"Addresses\""), "{serve}");
    assert!(!serve.contains(".SH ADDRESSES"), "{serve}");
}

/// According to roff(7): no page has an element of which a reader would complain.
#[test]
fn man_pages_are_well_formed() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = outlive(&["man", &directory.path().to_string_lossy()]);
    assert!(output.status.success(), "{output:?}");
    for page in [
        "man1/outlive-lab.1",
        "man1/outlive-make.1",
        "man5/outlive.toml.5",
        "man7/outlive-events.7",
        "man8/outlive-serve.8",
    ] {
        let text = fs::read_to_string(directory.path().join(page)).expect("readable");
        let mut requests = text.lines().filter(|line| line.starts_with(['.', '\'']));
        let known = [
            ".TH", ".SH", ".SS", ".TP", ".RS", ".RE", ".br", ".nf", ".fi", ".B", ".I", ".BR",
            ".PP", ".sp", ".ie", ".el", ".IP",
        ];
        let strange =
            requests.find(|line| !known.contains(&line.split(' ').next().unwrap_or_default()));
        assert_eq!(strange, None, "{page}");
    }
}

#[test]
fn unwritable_directory_is_named() {
    let output = outlive(&["man", "/proc/nowhere"]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/proc/nowhere"), "{said}");
}

#[test]
fn completions_know_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = outlive(&["completions", shell]);
        assert!(output.status.success(), "{output:?}");
        let script = String::from_utf8_lossy(&output.stdout);
        assert!(script.contains("on-logger-loss"), "{shell}");
    }
}

/// Services of these names, in a run directory.
fn services() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["web", "website", "mail"] {
        fs::create_dir(directory.path().join(name)).expect("a directory");
    }
    directory
}

fn script(shell: &str, directory: &Path, name: &str) -> PathBuf {
    let file = directory.join(name);
    fs::write(&file, outlive(&["completions", shell]).stdout).expect("written");
    file
}

/// fish completes commands, options and the names of the services that there are.
#[test]
fn fish_completes_services() {
    let (run_dir, directory) = (services(), tempfile::tempdir().expect("a directory"));
    let file = script("fish", directory.path(), "outlive.fish");
    let completed = |line: &str| {
        let asks = format!("source {}; complete -C '{line}'", file.display());
        let mut fish = Command::new("fish");
        let fish = fish.args(["--no-config", "-c", &asks]);
        let fish = fish.env("OUTLIVE_RUN_DIR", run_dir.path());
        let answer = fish.env("HOME", directory.path()).output().expect("fish");
        let said = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert!(answer.stderr.is_empty(), "{answer:?}");
        let words = said.lines().filter_map(|line| line.split('\t').next());
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed("outlive swi"), ["switchover"]);
    assert_eq!(completed("outlive status we"), ["web", "website"]);
    assert_eq!(completed("outlive restart mai"), ["mail"]);
    assert_eq!(completed("outlive status --js"), ["--json"]);
    assert!(!completed("outlive serve we").contains(&"web".to_owned()));
}

/// zsh, too. zsh completes only text that is typed at a terminal.
#[test]
fn zsh_completes_services() {
    const TYPES: &str = r#"
zmodload zsh/zpty
zpty inner "ZDOTDIR=$HOME zsh -i"
zpty -r inner begun $'*ready*'
for line in "$@"; do
    zpty -w -n inner $line$'\t\n'
    zpty -r inner said $'*<*>*'
    print -r -- "${${said##*<}%%>*}"
done
zpty -d inner
"#;
    const TYPED_AT: &str = r#"
fpath=($HOME $fpath)
unsetopt beep zle_bracketed_paste
PROMPT= RPROMPT= PROMPT_SP= TERM=dumb
autoload -U compinit
compinit -u -D
outlive() { print -r -- "<$*>" }
print ready
"#;
    let (run_dir, home) = (services(), tempfile::tempdir().expect("a directory"));
    script("zsh", home.path(), "_outlive");
    fs::write(home.path().join(".zshrc"), TYPED_AT).expect("written");
    let completed = |lines: &[&str]| {
        let mut zsh = Command::new("zsh");
        let zsh = zsh.args(["-f", "-c", TYPES, "zsh"]).args(lines);
        let zsh = zsh.env("OUTLIVE_RUN_DIR", run_dir.path());
        let answer = zsh.env("HOME", home.path()).output().expect("zsh");
        assert!(answer.status.success(), "{answer:?}");
        let said = String::from_utf8_lossy(&answer.stdout);
        let words = said.lines().map(|line| line.trim().to_owned());
        words.collect::<Vec<_>>()
    };
    let lines = [
        "outlive swi",
        "outlive status we", // as far as both are the same
        "outlive restart mai",
        "outlive status --js",
        "outlive switchover webs",
    ];
    let all = [
        "switchover",
        "status web",
        "restart mail",
        "status --json",
        "switchover website",
    ];
    assert_eq!(completed(&lines), all);
}

/// bash completes the names of the services that there are.
#[test]
fn bash_completes_services() {
    let directory = services();
    let script = script("bash", directory.path(), "completions");
    let completed = |words: &str, number: u32| {
        let asks = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={number}; \
             _outlive_and_services outlive \"${{COMP_WORDS[{number}]}}\" \"${{COMP_WORDS[{}]}}\"; echo ${{COMPREPLY[@]}}",
            script.display(),
            number - 1
        );
        let mut bash = Command::new("bash");
        let bash = bash
            .args(["-c", &asks])
            .env("OUTLIVE_RUN_DIR", directory.path());
        let answer = bash.output().expect("bash");
        String::from_utf8_lossy(&answer.stdout).trim().to_owned()
    };
    assert_eq!(completed("outlive status we", 2), "web website");
    assert_eq!(completed("outlive restart mai", 2), "mail");
    assert_eq!(completed("outlive serve we", 2), "");
    assert!(completed("outlive status --js", 2).contains("--json"));
}

#[test]
fn lab_help_mentions_shared_pids() {
    let output = outlive(&["lab", "--help"]);
    let help = String::from_utf8_lossy(&output.stdout).replace('\n', " ");
    let words: Vec<&str> = help.split_whitespace().collect();
    let help = words.join(" ");
    assert!(
        help.contains("Process numbers are those of this machine"),
        "{help}"
    );
}
