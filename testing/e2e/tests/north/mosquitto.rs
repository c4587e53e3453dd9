//! mosquitto with its clients: published messages arrive once and in order.

use std::{fs, net::SocketAddr, path::PathBuf, thread, time::Duration};

use e2e::{
    Scene, Seed,
    exchange::{assert_all_recovered, assert_untouched},
    servers::{SERVER_PORT, mosquitto},
};
use lab::{Output, Process, Signal};

use super::{STATEFUL_REQUIRE, await_condition, kill_repeatedly};

/// Qualities of service.
pub(super) const QOS_LEVELS: [&str; 3] = ["0", "1", "2"];

/// A `mosquitto_sub` and its output.
pub(super) struct Subscriber {
    process: Process,
    said: PathBuf,
}

impl Subscriber {
    /// Returns after the subscription.
    fn new(scene: &Scene, to: SocketAddr, name: &str, arguments: &[&str]) -> Self {
        let said = scene.directory().join(name);
        let (host, port) = (to.ip().to_string(), to.port().to_string());
        let mut command = scene.client.command("stdbuf");
        command.args(["-oL", "mosquitto_sub"]);
        command
            .args(["-d", "-h", &host, "-p", &port])
            .args(arguments);
        let output = Output::File(said.clone());
        let process = scene
            .client
            .spawn(&mut command, &output)
            .expect("it starts");
        let this = Self { process, said };
        await_condition("it subscribes", || this.log().contains("Subscribed"));
        this
    }

    /// Waits for `count` messages with this quality of service.
    pub(super) fn of(scene: &Scene, to: SocketAddr, quality: &str, count: usize) -> Self {
        let (topic, count) = (format!("load/{quality}"), count.to_string());
        let arguments = ["-q", quality, "-t", &topic, "-C", &count];
        Self::new(scene, to, &topic.replace('/', "-"), &arguments)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// The received messages, without log lines of `mosquitto_sub`.
    fn messages(&self) -> Vec<String> {
        let said = self.log();
        let lines = said.lines();
        lines
            .filter(|line| !line.starts_with("Client ") && !line.starts_with("Subscribed"))
            .map(str::to_owned)
            .collect()
    }

    /// The messages until `mosquitto_sub` exits by itself.
    pub(super) fn ends(&self) -> Vec<String> {
        let ended = self
            .process
            .wait_with_timeout(e2e::EVENT_TIMEOUT)
            .expect("wait");
        assert!(
            ended.is_some_and(|status| status.success()),
            "{ended:?}: {}",
            self.log()
        );
        self.messages()
    }
}

/// Numbers from 1 on, a few milliseconds apart.
pub(super) fn publish(scene: &Scene, to: SocketAddr, quality: &str, count: usize) {
    let script = format!(
        "for n in $(seq {count}); do echo $n; sleep 0.004; done | \
         mosquitto_pub -h {} -p {} -q {quality} -t load/{quality} -l",
        to.ip(),
        to.port()
    );
    let finished = scene.on_client("sh", &["-c", &script]);
    assert!(finished.status.success(), "{finished:?}");
}

fn publish_one(scene: &Scene, topic: &str, message: &str) {
    let host = scene.ipv4(SERVER_PORT).ip().to_string();
    let port = SERVER_PORT.to_string();
    let arguments = [
        "-h", &host, "-p", &port, "-q", "1", "-r", "-t", topic, "-m", message,
    ];
    let finished = scene.on_client("mosquitto_pub", &arguments);
    assert!(finished.status.success(), "{finished:?}");
}

#[test]
fn mosquitto_delivers_each_message_once() {
    const MESSAGE_COUNT: usize = 600;
    let scene = Scene::new("mosquitto");
    let server = scene.protect_with(&mosquitto(&scene), &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let seed = &mut Seed::choose("mosquitto");
    let to = scene.ipv4(SERVER_PORT);
    let subscribers = QOS_LEVELS.map(|quality| Subscriber::of(&scene, to, quality, MESSAGE_COUNT));
    let expected: Vec<String> = (1..=MESSAGE_COUNT)
        .map(|number| number.to_string())
        .collect();
    let scene = &scene;
    thread::scope(|scope| {
        let publishers = QOS_LEVELS
            .map(|quality| scope.spawn(move || publish(scene, to, quality, MESSAGE_COUNT)));
        kill_repeatedly(&server, 5, seed);
        for publisher in publishers {
            publisher.join().expect("a publisher");
        }
    });
    for (quality, subscriber) in QOS_LEVELS.iter().zip(&subscribers) {
        assert_eq!(subscriber.ends(), expected, "quality {quality}");
    }
    assert_all_recovered(&server);
    assert_untouched(recording, 6);
}

#[test]
fn mosquitto_keeps_retained_messages_and_last_will() {
    let scene = Scene::new("mosquittowill");
    let server = scene.protect_with(&mosquitto(&scene), &STATEFUL_REQUIRE);
    let to = scene.ipv4(SERVER_PORT);
    let heir = Subscriber::new(&scene, to, "heir", &["-q", "1", "-t", "will/#", "-C", "1"]);
    let arguments = [
        "-t",
        "none",
        "--will-topic",
        "will/of",
        "--will-payload",
        "all to you",
        "--will-qos",
        "1",
    ];
    let mortal = Subscriber::new(&scene, to, "mortal", &arguments);
    publish_one(&scene, "kept/first", "one");
    for kill in 1..=3 {
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
        publish_one(&scene, "kept/second", &format!("two {kill}"));
    }
    let kept = Subscriber::new(
        &scene,
        to,
        "kept",
        &["-q", "1", "-t", "kept/#", "-C", "2", "-v"],
    );
    let mut told = kept.ends();
    told.sort_unstable();
    assert_eq!(told, ["kept/first one", "kept/second two 3"]);
    assert_eq!(heir.messages(), [""; 0]);
    mortal.process.kill(Signal::KILL).expect("a signal");
    thread::sleep(Duration::from_millis(1));
    server.kill_main(Signal::KILL);
    server.wait_serving(4);
    assert_eq!(heir.ends(), ["all to you"]);
    assert_all_recovered(&server);
}
