//! The readers of a command's output, and the end of the output.

use std::{
    fs::{self, File},
    io::Read as _,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use make::{command, output::Output};
use rustix::pipe::{PipeFlags, pipe_with};

/// Longest time of a step that must happen.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < STEP_TIMEOUT, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// How many bytes are in a pipe.
fn waiting_in(pipe: &File) -> u64 {
    rustix::io::ioctl_fionread(pipe).expect("a pipe")
}

fn given(terminal: [bool; 3], is_joined: bool) -> command::Command {
    command::Command {
        program: "/bin/sh".into(),
        arguments: Vec::new(),
        environment: make::environment::Environment::default(),
        directory: "/".into(),
        umask: 0o022,
        terminal,
        is_joined,
        size: None,
        reads_nothing: true,
        jobserver: None,
        others: Vec::new(),
    }
}

fn says(given: &command::Command, script: &str) -> (Output, Child) {
    let (output, _input, ends) = Output::open(given).expect("pipes and a terminal");
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command.stdin(ends.input).stdout(ends.out).stderr(ends.err);
    let child = command.spawn().expect("a shell");
    (output, child)
}

/// A pipe: the reader, and the writer.
fn pipe() -> (File, File) {
    let (from, to) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    (from.into(), to.into())
}

/// Reads all output: the end must come.
fn heard(mut reader: File) -> String {
    let mut said = String::new();
    reader.read_to_string(&mut said).expect("what was said");
    said
}

#[test]
fn terminal_output_stays_off_the_pipe() {
    for terminal in [[false; 3], [true, false, true], [false, false, true]] {
        let (output, mut child) = says(&given(terminal, false), "echo out; echo err >&2");
        child.wait().expect("it ends");
        let ((out, to_out), (err, to_err)) = (pipe(), pipe());
        output.end();
        output.show([to_out, to_err]);
        assert_eq!((heard(out), heard(err)), ("out\n".into(), "err\n".into()));
    }
}

/// A background process has closed its ends, or some of the ends.
#[test]
fn reader_sees_end_before_background_process() {
    let (output, mut child) = says(
        &given([false; 3], false),
        "sleep 1000 >/dev/null 2>/dev/null & echo out $!",
    );
    child.wait().expect("it ends");
    let ((out, to_out), (err, to_err)) = (pipe(), pipe());
    output.show([to_out, to_err]);
    let (said, nothing) = (heard(out), heard(err));
    let left = said.strip_prefix("out ").expect("its number").trim();
    assert_eq!(nothing, "");
    let killed = Command::new("kill").arg(left).status().expect("kill");
    assert!(killed.success(), "{left} was there");
}

#[test]
fn joined_streams_keep_order() {
    let script = "for n in 1 2 3; do echo out $n; echo err $n >&2; done";
    let (output, mut child) = says(&given([false; 3], true), script);
    child.wait().expect("it ends");
    let ((out, to_out), (_err, to_err)) = (pipe(), pipe());
    output.end();
    output.show([to_out, to_err]);
    assert_eq!(heard(out), "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n");
}

/// Terminals of this process; other tests have some for a while.
fn terminals() -> usize {
    let all = fs::read_dir("/proc/self/fd").expect("its files").flatten();
    let all = all.filter_map(|file| fs::read_link(file.path()).ok());
    all.filter(|file| file.ends_with("ptmx")).count()
}

#[test]
fn ended_command_has_no_terminal() {
    let mut ended = Vec::new();
    for _ in 0..10 {
        let (output, input, ends) = Output::open(&given([true; 3], false)).expect("a terminal");
        let mut command = Command::new("echo");
        command.stdin(ends.input).stdout(ends.out).stderr(ends.err);
        command.status().expect("echo");
        drop(command);
        output.end();
        input.close();
        ended.push((output, input));
    }
    until("terminals are left", || terminals() == 0);
}

#[test]
fn command_with_excess_output_waits() {
    const OUTPUT_BYTES: usize = 100_000_000;
    let script = format!("head -c {OUTPUT_BYTES} /dev/zero");
    let (output, mut child) = says(&given([false; 3], false), &script);
    until("nothing more is kept", || output.is_full());
    assert!(child.try_wait().expect("a child").is_none());
    let ((out, to_out), (_err, to_err)) = (pipe(), pipe());
    output.show([to_out, to_err]);
    let said = thread::spawn(move || heard(out).len());
    assert!(child.wait().expect("it ends").success());
    assert_eq!(said.join().expect("it is heard"), OUTPUT_BYTES);
}

/// Another client may take over the output at the same time.
#[test]
fn shown_output_can_be_repeated() {
    let (output, mut child) = says(&given([false; 3], false), "echo out; echo err >&2");
    child.wait().expect("it ends");
    output.end();
    for _ in 0..2 {
        let ((out, to_out), (err, to_err)) = (pipe(), pipe());
        output.show([to_out, to_err]);
        assert_eq!((heard(out), heard(err)), ("out\n".into(), "err\n".into()));
    }
    let ((out, to_out), (_err, to_err)) = (pipe(), pipe());
    output.repeat(&mut [to_out, to_err]);
    assert_eq!(heard(out), "out\n");
}

/// The user's pipe or terminal may be non-blocking.
#[test]
fn nonblocking_sink_loses_no_output() {
    const OUTPUT_BYTES: usize = 1_000_000;
    let script = format!("head -c {OUTPUT_BYTES} /dev/zero");
    let (output, mut child) = says(&given([false; 3], false), &script);
    child.wait().expect("it ends");
    output.end();
    let ((out, to_out), (_err, to_err)) = (pipe(), pipe());
    rustix::io::ioctl_fionbio(&to_out, true).expect("a pipe");
    output.show([to_out, to_err]);
    until("the pipe is full", || waiting_in(&out) > 60_000);
    assert_eq!(heard(out).len(), OUTPUT_BYTES);
}

#[test]
fn absent_reader_delays_no_end() {
    let (output, mut child) = says(&given([false; 3], false), "head -c 300000 /dev/zero");
    child.wait().expect("it ends");
    let ((out, to_out), (_err, to_err)) = (pipe(), pipe());
    output.show([to_out, to_err]);
    until("something is said", || waiting_in(&out) > 0);
    assert!(!output.is_drained(Duration::from_millis(100)));
    output.abandon();
    assert!(output.is_drained(STEP_TIMEOUT));
    output.end();
    let said = heard(out).len();
    assert!((4096..300_000).contains(&said), "{said}");
}
