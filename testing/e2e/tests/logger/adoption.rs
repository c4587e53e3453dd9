//! Death of `serve` while the record is on another machine.

use e2e::Seed;
use e2e::exchange::Exchange;
use e2e::servers::{self, SERVER_PORT, test_server};
use lab::Signal;

use crate::{echoes, echoing, protect, status, with_logger};

#[test]
fn next_serve_finds_records_at_logger() {
    let (scene, logger) = with_logger("link-adopt");
    let server = test_server(&scene);
    let flags = logger.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut protected = protect(&scene, &server, &logger, &[]);
    let early = echoing(&scene);
    let recording = scene.record(SERVER_PORT);
    let exchange = Exchange {
        kills: 5,
        ..Exchange::default()
    };
    let connect = || scene.connect(SERVER_PORT);
    let mut seed = Seed::choose("link-adopt");
    exchange.disturbed(&mut seed, connect, |moment| match moment {
        0 | 2 => protected.kill_serve_itself(),
        1 | 3 => {
            protected.succeed(&scene, &server, &flags);
            let said = status(&protected);
            assert_eq!(said["unprotected"], 0, "{said}");
        }
        _ => {
            protected.kill_main(Signal::KILL);
            let serving = protected.wait_serving(1);
            assert_eq!(serving["reset"], 0, "{serving}");
        }
    });
    echoes(&early, b"afterwards");
    let endings = recording.finish();
    assert!(endings.iter().all(|ending| !ending.rst), "{endings:?}");
    assert!(
        logger.log().contains("with its earlier records"),
        "{}",
        logger.log()
    );
    protected.stop();
}

#[test]
fn server_killed_with_serve_is_recovered() {
    let (scene, logger) = with_logger("link-adopt-dead");
    let server = test_server(&scene);
    let flags = logger.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut protected = protect(&scene, &server, &logger, &[]);
    let stream = echoing(&scene);
    let pid = protected.main_pid();
    protected.kill_serve_itself();
    servers::signal_all(&[pid], Signal::KILL);
    protected.succeed(&scene, &server, &flags);
    let serving = protected.wait_serving(1);
    assert_eq!(
        (&serving["recovered"], &serving["reset"]),
        (&1.into(), &0.into()),
        "{serving}"
    );
    echoes(&stream, b"afterwards");
    protected.stop();
}
