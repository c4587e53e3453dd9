//! A server that does not start again at once.

use std::fs;

use e2e::clients::{read_exactly, write};
use e2e::servers::PORT;
use e2e::{Scene, assert_same_bytes};
use lab::Signal;

use crate::{echoes, echoing, is_reset, lost_only, needy, talks};

#[test]
fn a_server_that_does_not_start_for_a_while() {
    let scene = Scene::new("not-started");
    let (server, file) = needy(&scene);
    let protected = scene.protect(&server);
    let stream = echoing(&scene);
    let recording = scene.record(PORT);
    fs::remove_file(&file).expect("remove the needed file");
    protected.kill_main(Signal::KILL);
    // It dies of its own at each start; starts are further and further apart.
    protected.wait_for("died", 4);
    let starts: Vec<f64> = protected
        .events_of("restarted")
        .iter()
        .filter_map(|event| event["time"].as_f64())
        .collect();
    let pauses: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // A pause can take longer than it should, never less: 0, 100, 200 ms.
    for (pause, least) in pauses.iter().zip([0.1, 0.2]) {
        assert!(*pause >= least - 0.02, "no back-off: {pauses:?}");
    }
    // Sent while nobody is there.
    write(&stream, b"meanwhile");
    fs::write(&file, "").expect("restore the needed file");
    assert_same_bytes("echo", b"meanwhile", &read_exactly(&stream, 9));
    let serving = protected.wait_serving(1);
    assert_eq!(serving["kept"], 1, "{serving}");
    echoes(&stream, b"afterwards");
    let endings = recording.finish();
    assert!(endings.iter().all(|e| !e.rst && !e.fin), "{endings:?}");
    protected.stop();
}

#[test]
fn a_server_that_does_not_start_in_time() {
    let scene = Scene::new("given-up");
    let (server, file) = needy(&scene);
    let protected = scene.protect_with(&server, &["--give-up-after", "2s"]);
    let stream = echoing(&scene);
    fs::remove_file(&file).expect("remove the needed file");
    protected.kill_main(Signal::KILL);
    lost_only(&protected, &stream, "did not come back in time");
    is_reset(&stream);
    // New clients are served when it is back.
    fs::write(&file, "").expect("restore the needed file");
    protected.wait_serving(1);
    talks(&scene.connect(PORT), "again");
    protected.stop();
}
