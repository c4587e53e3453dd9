//! The wall clock of a host changes.
//!
//! Leases, timeouts and the BPF programs use clocks that cannot be set (`CLOCK_BOOTTIME`, `CLOCK_MONOTONIC`).
//! `CLOCK_REALTIME` appears in messages, and numbers the sessions of a service. Hosts of a lab share the kernel's
//! clocks, and the test must not set the clock of the machine. A small preloaded library shifts `CLOCK_REALTIME` of
//! `outlive`. The other two clocks cannot be shifted: time namespaces shift clocks for processes, but not for BPF
//! programs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use e2e::exchange::{assert_untouched, end, talks};
use e2e::pair::{Counts, FailOver, Pair, addresses};
use e2e::servers::SERVER_PORT;
use e2e::speakers::now;

use crate::phases::over;

const CLOCK_LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *time)
{
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, time);
    FILE *file = id == CLOCK_REALTIME ? fopen(getenv("CLOCK_STEP"), "r") : NULL;
    long seconds = 0;
    if (file && fscanf(file, "%ld", &seconds) == 1)
        time->tv_sec += seconds;
    if (file)
        fclose(file);
    return result;
}
"#;

const DAY_SECONDS: i32 = 86_400;

fn set(file: &Path, seconds: i32) {
    let new = file.with_extension("new");
    fs::write(&new, seconds.to_string()).expect("write an offset");
    fs::rename(new, file).expect("set a clock");
}

#[test]
fn lease_ignores_wall_clock() {
    let mut pair = Pair::with_test_server("takeover-clock");
    let source = pair.scene.write("clock.c", CLOCK_LIBRARY);
    let library = source.with_extension("so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .arg("-ldl");
    assert!(cc.status().expect("a C compiler").success());
    let step = source.with_extension("step");
    set(&step, 0);
    for one in [&mut pair.first, &mut pair.second] {
        one.add_environment("CLOCK_STEP", &step.to_string_lossy());
        one.add_environment("LD_PRELOAD", &library.to_string_lossy());
    }
    let recording = pair.scene.record(SERVER_PORT);
    let talk = addresses().map(|to| pair.scene.connect_to(to));
    let all_talk = |word: &str| {
        for stream in &talk {
            talks(stream, word);
        }
    };
    all_talk("before");
    // Both are new then, with the library.
    for _ in 0..2 {
        pair.fail_over(FailOver::PowerOff);
        all_talk("with the library");
    }
    for seconds in [3600, -DAY_SECONDS, 20 * 365 * DAY_SECONDS] {
        let before = Counts::of(&pair);
        set(&step, seconds);
        all_talk("stepped");
        thread::sleep(over() * 2);
        all_talk("a while later");
        let after = Counts::of(&pair);
        assert_eq!(before.granted, after.granted, "{}", pair.second.log());
        pair.fail_over(FailOver::Switchover);
        pair.fail_over(FailOver::Stop);
        all_talk("after takeovers");
        // The host really had that time.
        let told = pair.first.events_of("granted").pop().expect("it serves");
        let told = told["time_unix_us"].as_f64().expect("a time") / 1e6 - now().as_secs_f64();
        let wrong = told - f64::from(seconds);
        assert!(wrong.abs() < 600.0, "{told} s instead of {seconds} s");
    }
    for stream in &talk {
        end(stream);
    }
    assert_untouched(recording, 2);
    pair.stop();
}
