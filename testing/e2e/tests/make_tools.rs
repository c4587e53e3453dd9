//! `outlive make` with tools that write below the home directory of the user: the result is reused although each tool
//! locks or writes a file there.

mod ab_builds;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use ab_builds::{AbBuilds, outlive, wait_until};

/// A project, and the home directory of the user who builds the project.
struct Project {
    builds: AbBuilds,
    home: PathBuf,
    /// Variables that tell the tool the home directory.
    variables: Vec<(&'static str, PathBuf)>,
}

impl Project {
    /// The variables name directories of the home.
    fn new(files: &[(&str, &str)], variables: &[(&'static str, &str)]) -> Self {
        let builds = AbBuilds::new(files);
        let home = builds.directory.path().join("home");
        let place = |(name, place): &(&'static str, &str)| (*name, home.join(place));
        let variables: Vec<_> = variables.iter().map(place).collect();
        for (_, place) in &variables {
            fs::create_dir_all(place).expect("a directory");
        }
        Self {
            builds,
            home,
            variables,
        }
    }

    fn make(&self) -> Command {
        let mut make = outlive();
        make.arg("make").envs(self.variables.clone());
        make.current_dir(&self.builds.ours).stdin(Stdio::null());
        make
    }

    fn watch(&mut self) {
        let mut watch = self.make();
        watch.arg("--watch");
        self.builds.spawn_watcher(watch);
    }

    /// Requests the result, after the speculation. Returns the output of the program.
    fn asked_for(&self, program: &str) -> String {
        self.builds.await_speculation();
        let made = self.make().output().expect("outlive make");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{said}");
        assert!(
            said.contains("revealed") && !said.contains("went on"),
            "{said}"
        );
        let program = Command::new(self.builds.ours.join(program)).output();
        String::from_utf8(program.expect("it was made").stdout).expect("text")
    }
}

fn is_there(program: &str) -> bool {
    let version = Command::new(program).arg("version").output();
    version.is_ok_and(|it| it.status.success())
}

/// cargo locks a file in the home directory first.
#[test]
fn cargo_result_is_reused() {
    let files = [
        ("Makefile", "all:\n\tcargo build -q --offline\n"),
        (
            "Cargo.toml",
            "[package]\nname = \"thing\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
        ),
        ("src/main.rs", "fn main() { print!(\"first\") }\n"),
    ];
    let variables = [("CARGO_HOME", ".cargo"), ("CARGO_TARGET_DIR", "target")];
    let mut project = Project::new(&files, &variables);
    project.variables[1].1 = project.builds.ours.join("target");
    project.watch();
    assert_eq!(project.asked_for("target/debug/thing"), "first");
    project
        .builds
        .save("src/main.rs", "fn main() { print!(\"second\") }\n");
    assert_eq!(project.asked_for("target/debug/thing"), "second");
}

/// Go counts runs in a file of the home directory, and caches compiled packages.
#[test]
fn go_result_is_reused() {
    if !is_there("go") {
        return eprintln!("there is no Go here");
    }
    let text = |word: &str| {
        format!(
            "package main\nimport \"os\"\nfunc main() {{ os.Stdout.WriteString(\"{word}\") }}\n"
        )
    };
    let files = [
        ("Makefile", "all:\n\tgo build -o prog .\n"),
        ("go.mod", "module thing\ngo 1.19\n"),
        ("main.go", &*text("first")),
    ];
    let variables = [
        ("GOCACHE", "cache"),
        ("XDG_CONFIG_HOME", "config"),
        ("", "config/go/telemetry/local"),
    ];
    let mut project = Project::new(&files, &variables);
    project.variables.pop();
    project.watch();
    assert_eq!(project.asked_for("prog"), "first");
    project.builds.save("main.go", &text("second"));
    assert_eq!(project.asked_for("prog"), "second");
    let kept = fs::read_dir(project.home.join("cache")).expect("it is there");
    assert!(kept.count() > 0, "what it has compiled was lost");
}

/// npm writes a log, and each unpacked package, into the cache.
#[test]
fn npm_result_is_reused() {
    if !is_there("npm") {
        return eprintln!("there is no npm here");
    }
    let script = |word: &str| {
        format!(
            "const fs = require('fs');\n\
             const word = require('dep') + '{word}';\n\
             fs.writeFileSync('prog', `#!/bin/sh\\nprintf '${{word}}'\\n`, {{ mode: 0o755 }});\n"
        )
    };
    let files = [
        (
            "Makefile",
            "all:\n\tnpm install --silent --offline --no-audit --no-fund\n\tnpm run --silent build\n",
        ),
        (
            "package.json",
            r#"{"name":"thing","version":"1.0.0","dependencies":{"dep":"file:dep"},"scripts":{"build":"node build.js"}}"#,
        ),
        ("dep/package.json", r#"{"name":"dep","version":"1.0.0"}"#),
        ("dep/index.js", "module.exports = 'the ';\n"),
        ("build.js", &*script("first")),
    ];
    let mut project = Project::new(&files, &[("npm_config_cache", "cache")]);
    project.watch();
    assert_eq!(project.asked_for("prog"), "the first");
    project.builds.save("build.js", &script("second"));
    assert_eq!(project.asked_for("prog"), "the second");
    let kept = fs::read_dir(project.home.join("cache")).expect("it is there");
    assert!(kept.count() > 0, "what it has kept was lost");
}

/// The message names the waiting command and the resource.
#[test]
fn blocking_resource_is_reported() {
    let makefile = "there := $(CURDIR).there\nall:\n\t@touch begun; cat /dev/null >$(there)\n";
    let mut builds = AbBuilds::new(&[("Makefile", makefile)]);
    builds.watch(&[]);
    builds.await_waiting_command();
    let status = || {
        let mut status = outlive();
        status.args(["make", "--status"]).current_dir(&builds.ours);
        String::from_utf8(status.output().expect("outlive").stdout).expect("text")
    };
    let there = builds.ours.with_extension("there");
    let line = format!(
        "(sh) waits until it is asked for: outside of what is concealed: {}\n",
        there.display()
    );
    let said = status();
    assert!(said.contains(&line), "{said}");
    // `status` does not list a command that a newer make has replaced.
    let replaced = |said: &str| said.matches("waits until").count() == 1;
    builds.save("Makefile", &makefile.replace("begun", "begun anew"));
    builds.await_waiting_command();
    wait_until("one of them waits", || replaced(&status()));
    assert!(!Path::new(&there).exists());
}
