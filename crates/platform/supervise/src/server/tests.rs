use super::Exit;

fn by_signal(signal: i32, core_dumped: bool) -> Exit {
    Exit::Signal {
        signal,
        core_dumped,
    }
}

#[test]
fn exits_are_printed() {
    assert_eq!(Exit::Status(1).to_string(), "exited with status 1");
    assert_eq!(by_signal(9, false).to_string(), "killed by SIGKILL");
    assert_eq!(
        by_signal(6, true).to_string(),
        "killed by SIGABRT (core dumped)"
    );
    assert_eq!(by_signal(40, false).to_string(), "killed by signal 40");
}

#[test]
fn only_status_zero_is_no_failure() {
    assert!(!Exit::Status(0).is_failure());
    assert!(Exit::Status(1).is_failure());
    assert!(by_signal(15, false).is_failure());
}
