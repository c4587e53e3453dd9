//! `outlive make` beside `make`, from another shell, window or terminal than expected.

mod ab_builds;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use ab_builds::{AbBuilds, EVENT_TIMEOUT, make, outlive, tree_contents, without_make_variables};

/// As in another shell: with these variables.
fn asked_with(builds: &AbBuilds, variables: &[(&str, &str)]) -> String {
    let run = |mut make: Command, tree: &Path| {
        make.envs(variables.iter().copied()).current_dir(tree);
        make.output().expect("a make")
    };
    let mut ours = outlive();
    ours.arg("make");
    let (ours, theirs) = (run(ours, &builds.ours), run(make(), &builds.theirs));
    let said = builds.compare(&ours, &theirs);
    assert_eq!(tree_contents(&builds.ours), tree_contents(&builds.theirs));
    said
}

/// A shell sets `OLDPWD` at each `cd`; each pane of a terminal has other values of the last variables.
const SHELL_VARIABLES: [&[(&str, &str)]; 4] = [
    &[("OLDPWD", "/usr")],
    &[("OLDPWD", "/etc"), ("SHLVL", "7")],
    &[("TMUX", "/tmp/tmux-0/default,1,0"), ("TMUX_PANE", "%1")],
    &[("TMUX_PANE", "%2"), ("WINDOWID", "77")],
];

#[test]
fn shell_and_window_make_no_difference() {
    let makefile = "out: in\n\tcp in $@\n\t@$(MAKE) -s nested\nnested:\n\t@sh script\n";
    let mut builds = AbBuilds::new(&[
        ("Makefile", makefile),
        ("script", "#!/bin/sh\ncat in\n"),
        ("in", "text\n"),
    ]);
    builds.watch(&[]);
    for (number, variables) in SHELL_VARIABLES.into_iter().enumerate() {
        builds.save("in", &format!("text {number}\n"));
        builds.await_speculation();
        let said = asked_with(&builds, variables);
        assert!(said.contains("revealed"), "{variables:?}: {said}");
    }
}

/// In a recipe, a makefile, or a script.
#[test]
fn request_for_other_directory_is_explained() {
    let askers = [
        "@echo $$OLDPWD $$SHLVL; cp in out",
        "@echo $(OLDPWD) $(SHLVL); cp in out",
        "@sh script; cp in out",
        "@cp in out; env | grep -E '^(OLDPWD|SHLVL)=' | sort",
        "@$(MAKE) -s nested; cp in out",
    ];
    for asker in askers {
        let makefile = format!("include part\nout: in\n\t{asker}\nnested:\n\t@./script\n");
        let mut builds = AbBuilds::new(&[
            ("Makefile", &makefile),
            ("part", "PART := $(TMUX_PANE)\n"),
            ("in", "text\n"),
        ]);
        // A program, in both trees.
        builds.shell("printf '#!/bin/sh\\necho $SHLVL $OLDPWD\\n' >script; chmod +x script");
        builds.watch(&[]);
        for (number, variables) in SHELL_VARIABLES[..2].iter().enumerate() {
            builds.save("in", &format!("text {number}\n"));
            builds.await_speculation();
            let said = asked_with(&builds, variables);
            assert!(
                said.contains("asked for with another OLDPWD"),
                "{asker}: {said}"
            );
        }
    }
}

#[test]
fn missing_reuse_is_explained() {
    let makefile = "out: in\n\tcp in $@\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile), ("in", "text\n")]);
    builds.watch(&[]);
    builds.await_speculation();
    let said = asked_with(&builds, &[("CC", "no-compiler")]);
    assert_eq!(said, "outlive: asked for with another CC than expected\n");
    builds.await_speculation();
    let said = builds.make(&["-k"]);
    assert_eq!(
        said,
        "outlive: asked for `make -k`, and `make` was expected\n"
    );
}

/// Runs a script in a shell with a terminal of 80 columns; returns the output.
fn at_a_terminal(builds: &AbBuilds, script: &str) -> String {
    let mut terminal = without_make_variables(Command::new("timeout"));
    let done = "until $O make --status --json | grep -q \"\\\"running\\\":0,\\\"begun\\\":[1-9]\"; do sleep 0.05; done";
    let script = format!(
        "bash -mc 'stty cols 80; $O make --watch & {done}; {script}; $O make --stop; wait'"
    );
    let limit = EVENT_TIMEOUT.as_secs().to_string();
    terminal.args([&*limit, "script", "-qec", &script, "/dev/null"]);
    terminal.env("O", outlive().get_program());
    terminal.current_dir(&builds.ours).stdin(Stdio::null());
    let said = terminal.output().expect("script");
    String::from_utf8_lossy(&said.stdout).replace('\r', "")
}

#[test]
fn terminal_size_matters_to_its_readers_only() {
    let compiles = "out: in.c\n\tcc -c -o out in.c\n";
    let source = "int main(void) { return 0; }\n";
    let builds = AbBuilds::new(&[("Makefile", compiles), ("in.c", source)]);
    let said = at_a_terminal(&builds, "stty cols 100; $O make");
    assert!(said.contains("revealed"), "{said}");
    let asks = "out:\n\t@stty size\n\ttouch out\n";
    let builds = AbBuilds::new(&[("Makefile", asks)]);
    let said = at_a_terminal(&builds, "stty cols 100; $O make");
    assert!(said.contains(" 100\n"), "{said}");
    assert!(
        said.contains("asked for with another size of the terminal than expected"),
        "{said}"
    );
}

/// Results of root are of no use to another user, and a message says so.
#[test]
fn unprivileged_request_names_root_watcher() {
    let mut builds = AbBuilds::new(&[("Makefile", "all:\n\t@echo made\n")]);
    let open = |path: &Path| {
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(path, mode).expect("it is there");
    };
    // Where another user may run it.
    let program = builds.directory.path().join("outlive");
    fs::copy(outlive().get_program(), &program).expect("outlive");
    for path in [&program, builds.directory.path(), &builds.ours] {
        open(path);
    }
    builds.watch(&[]);
    let mut other = Command::new("setpriv");
    other
        .args(["--reuid", "65534", "--clear-groups"])
        .arg(&program);
    let made = without_make_variables(other)
        .arg("make")
        .current_dir(&builds.ours)
        .output();
    let made = made.expect("setpriv");
    let said = String::from_utf8_lossy(&made.stderr);
    let line = format!("outlive: {} is watched by root", builds.ours.display());
    assert!(said.contains(&line), "{said}");
    assert_eq!(made.stdout, b"made\n");
}
