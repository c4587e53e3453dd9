//! A logger under a service manager.

use e2e::loggers::key_file;
use e2e::manager::Manager;
use e2e::{EVENT_TIMEOUT, Scene, binaries};
use lab::{Output, Signal};

#[test]
fn logger_notifies_service_manager() {
    let scene = Scene::new("watched");
    let manager = Manager::new(&scene);
    let at = format!("{}:7600", scene.server.address().ipv4());
    let mut command = manager.command(&scene.server);
    command.arg(binaries::outlive());
    command.args(["logger", "--listen", &at, "--key-file"]);
    command.arg(key_file(&scene, "keys"));
    let said = Output::File(scene.directory().join("logger.said"));
    let process = scene.server.spawn(&mut command, &said).expect("a start");
    for word in ["READY=1", "WATCHDOG=1", "WATCHDOG=1"] {
        manager.await_message(word);
    }
    process.kill(Signal::TERM).expect("a signal");
    manager.await_message("STOPPING=1");
    let ended = process.wait_with_timeout(EVENT_TIMEOUT).expect("a wait");
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}
