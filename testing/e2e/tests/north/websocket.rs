//! WebSockets by Python's asyncio: a long connection with messages in both directions.

use std::{net::SocketAddr, thread};

use e2e::{
    Scene, Seed,
    exchange::assert_all_recovered,
    servers::{Authority, SERVER_PORT, chat_server},
};

use super::{STATEFUL_REQUIRE, await_condition, kill_repeatedly};

/// Speaks until the file `ends` exists, and makes a file after the first message. Hears every client: the numbers have
/// no gap and no repetition, and each client's messages come once and in order. The connection stays the same to the
/// end.
const CLIENT_SCRIPT: &str = r#"
import asyncio, os, ssl, sys, websockets
url, name, ends = sys.argv[1:4]
context = ssl.create_default_context(cafile=sys.argv[4]) if len(sys.argv) > 4 else None
async def main():
    async with websockets.connect(url, ssl=context, open_timeout=120, ping_timeout=120, close_timeout=120) as socket:
        assert (await socket.recv()).startswith("welcome ")
        said, heard, last = 0, 0, None
        while not os.path.exists(ends):
            said += 1
            await socket.send(f"{name} {said}")
            while heard < said:
                number, who, what = (await socket.recv()).split(" ")
                assert last is None or int(number) == last + 1, f"{number} after {last}"
                last = int(number)
                if who == name:
                    heard += 1
                    assert int(what) == heard, f"{what} instead of {heard}"
            if said == 1:
                open(f"{ends}-{name}", "w").close()
            # A server that never has a pause nobody can follow who has the same processor.
            await asyncio.sleep(0.002)
        print(said)
asyncio.run(main())
"#;

fn run_client(scene: &Scene, to: SocketAddr, name: &str, authority: Option<&Authority>) -> u32 {
    let script = scene.write(&format!("{name}.py"), CLIENT_SCRIPT);
    let scheme = if authority.is_some() { "wss" } else { "ws" };
    let url = format!("{scheme}://{to}/");
    let ends = scene.directory().join("ends");
    let certificate = authority.map(|one| one.certificate.to_string_lossy());
    let (script, ends) = (script.to_string_lossy(), ends.to_string_lossy());
    let mut arguments = vec![&*script, &url, name, &ends];
    arguments.extend(certificate.as_deref());
    let finished = scene.on_client("/usr/bin/python3", &arguments);
    assert!(finished.status.success(), "{name}: {finished:?}");
    let said = String::from_utf8_lossy(&finished.stdout);
    said.trim().parse().expect("a number")
}

/// Three talk while something else is done.
pub(super) fn run_clients(
    scene: &Scene,
    to: SocketAddr,
    authority: Option<&Authority>,
    meanwhile: impl FnOnce(),
) {
    thread::scope(|scope| {
        let clients = ["one", "two", "three"]
            .map(|name| scope.spawn(move || run_client(scene, to, name, authority)));
        await_condition("all three talk", || {
            let has_begun = |name| scene.directory().join(format!("ends-{name}")).exists();
            ["one", "two", "three"].into_iter().all(has_begun)
        });
        meanwhile();
        scene.write("ends", "");
        for client in clients {
            assert!(client.join().expect("a client") > 0);
        }
    });
}

fn everybody_hears_everything(label: &str, make: fn(&Scene) -> Option<Authority>) {
    let scene = Scene::new(label);
    let authority = make(&scene);
    let server = scene.protect_with(&chat_server(&scene, authority.as_ref()), &STATEFUL_REQUIRE);
    let seed = &mut Seed::choose(label);
    run_clients(&scene, scene.ipv4(SERVER_PORT), authority.as_ref(), || {
        kill_repeatedly(&server, 6, seed);
    });
    assert_all_recovered(&server);
}

#[test]
fn chat_delivers_all_messages() {
    everybody_hears_everything("room", |_| None);
}

#[test]
fn chat_with_tls_delivers_all_messages() {
    everybody_hears_everything("roomtls", |scene| Some(Authority::new(scene)));
}
