//! Node.js.

use std::net::SocketAddr;

use super::{SERVER_PORT, Server};
use crate::Scene;

/// The response to `GET /NAME` has the number of requests for NAME, the number of all requests, values of this
/// incarnation alone (random numbers, clocks, the size of the heap), and the result of some work. The work is a timer,
/// the content of a file, hashes and archives by the thread pool, or garbage. IPv4 only.
const COUNTER_SCRIPT: &str = r#"
const http = require("http"), crypto = require("crypto"), fs = require("fs"), zlib = require("zlib");
const counters = new Map(), objects = new Map();
let all = 0, ticks = 0;
setInterval(() => ticks++, 7);
const called = begin => new Promise((done, fail) => begin((error, result) => error ? fail(error) : done(result)));
const works = [
  () => new Promise(done => setTimeout(done, all % 3)),
  async () => (await called(back => crypto.pbkdf2("word" + all, "salt", 100, 16, "sha256", back))).toString("hex"),
  async () => (await fs.promises.readFile(__filename)).length,
  () => crypto.randomBytes(8).toString("hex"),
  async () => (await called(back => zlib.gzip(JSON.stringify(counters.size + "x".repeat(all)), back))).length,
  () => objects.set(all % 200, Array.from({ length: 300 }, (_, index) => ({ index, text: "text " + index + all }))).size,
];
http.createServer(async (request, response) => {
  const count = (counters.get(request.url) || 0) + 1;
  counters.set(request.url, count);
  all += 1;
  const before = all, result = await works[all % works.length]();
  response.end([count, before, ticks, Date.now(), Math.random(), process.memoryUsage().heapUsed, result].join(" "));
}).on("listening", function () { this.keepAliveTimeout = 600000; }).listen(Number(process.argv[3]), process.argv[2]);
"#;

/// A server that counts, with these options of node's.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn node(scene: &Scene, options: &[&str]) -> Server {
    node_at(scene, scene.ipv4(SERVER_PORT), options)
}

/// The same, at this address.
///
/// # Panics
/// As there.
#[must_use]
pub fn node_at(scene: &Scene, address: SocketAddr, options: &[&str]) -> Server {
    let script = scene.write("counter.js", COUNTER_SCRIPT);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let script = script.to_string_lossy();
    let command = [&["node"], options, &[&script, &ip, &port]].concat();
    Server::new("node", vec![address], &command)
}
