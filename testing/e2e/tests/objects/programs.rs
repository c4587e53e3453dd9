//! curl and wget with ranges, with resumption and with connections that stay, from a pool of nginx and lighttpd. The
//! host of a member loses power in the middle of each transfer.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use e2e::arrange::wait_until;
use e2e::pool::{Pool, pool_addresses};
use e2e::servers::BIG_FILE_BYTES;
use e2e::{assert_same_bytes, pattern};

/// Bytes of each transfer at the moment of the failure.
const PART_BYTES: u64 = 1 << 20;
/// Transfers of a kind: members on both hosts have some.
const TRANSFERS_PER_KIND: usize = 2;
/// Statuses of curl: the transfer ended early, and the connection was reset.
const EARLY_END_STATUS: i32 = 18;
const RESET_STATUS: i32 = 56;

/// A transfer to a file.
struct Transfer {
    label: &'static str,
    program: Child,
    file: PathBuf,
    /// Bytes in the file before the transfer.
    before: usize,
    /// The bytes of the object that the file has at the end; `None`: not protected.
    expected: Option<std::ops::Range<usize>>,
}

/// A kind of transfer: words, bytes in the file before, and the bytes at the end.
type Kind = (
    &'static str,
    &'static [&'static str],
    usize,
    Option<std::ops::Range<usize>>,
);

const ALL: std::ops::Range<usize> = 0..BIG_FILE_BYTES;
const KINDS: [Kind; 9] = [
    ("whole", &["curl", "URL"], 0, Some(ALL)),
    (
        "part to the end",
        &["curl", "-r", "1000000-", "URL"],
        0,
        Some(1_000_000..BIG_FILE_BYTES),
    ),
    (
        "part",
        &["curl", "-r", "1000000-9000000", "URL"],
        0,
        Some(1_000_000..9_000_001),
    ),
    (
        "rest",
        &["curl", "-C", "5000000", "URL"],
        5_000_000,
        Some(ALL),
    ),
    (
        "rest of any length",
        &["curl", "-C", "-", "URL"],
        2_000_000,
        Some(ALL),
    ),
    (
        "part of another version",
        &["curl", "-H", "If-Range: \"other\"", "-r", "1000000-", "URL"],
        0,
        None,
    ),
    ("HTTP/1.0", &["curl", "--http1.0", "URL"], 0, Some(ALL)),
    (
        "two parts",
        &["curl", "-r", "0-6000000,7000000-13000000", "URL"],
        0,
        None,
    ),
    ("wget", &["wget", "-c", "URL"], 3_000_000, Some(ALL)),
];

impl Transfer {
    fn begin(pool: &Pool, kind: &Kind, number: usize) -> Self {
        let (label, words, before, expected) = kind.clone();
        let url = format!("http://{}/big.bin", pool_addresses()[number % 2]);
        let name = format!("{}-{number}", label.replace([' ', '/'], "-"));
        let file = pool.scene.write(&name, pattern(before));
        let mut command = pool.scene.client.command(words[0]);
        let path = file.to_string_lossy().into_owned();
        match words[0] {
            "curl" => command.args(["-q", "-sS", "-N", "--limit-rate", "2M", "-o", &path]),
            _ => command.args(["-q", "--tries=1", "--limit-rate=2m", "-O", &path]),
        };
        let words = words[1..]
            .iter()
            .map(|&word| if word == "URL" { &url } else { word });
        command.args(words).stdin(Stdio::null());
        Self {
            label,
            program: command.spawn().expect("a client"),
            file,
            before,
            expected,
        }
    }

    fn len(&self) -> u64 {
        fs::metadata(&self.file).map_or(0, |file| file.len())
    }

    /// Returns a description of a wrong end.
    fn finish(mut self) -> Option<String> {
        let status = self.program.wait().expect("an end").code();
        let got = fs::read(&self.file).expect("a file");
        match (&self.expected, status) {
            (Some(expected), Some(0)) => {
                assert_same_bytes(self.label, &pattern(BIG_FILE_BYTES)[expected.clone()], &got);
                None
            }
            (None, Some(0 | EARLY_END_STATUS | RESET_STATUS)) => None,
            (_, status) => Some(format!(
                "{}: {status:?} after {} bytes",
                self.label,
                got.len()
            )),
        }
    }
}

/// Two members: nginx and lighttpd, whose entity tags differ.
fn mixed_pool(label: &str) -> Pool {
    let mut pool = Pool::with(label, 0, &["--version-check", "modified"]);
    pool.add_member(&[]);
    pool.add_member_with(&[], Pool::lighttpd);
    pool
}

fn transfers_survive(label: &str, dies: usize) {
    let pool = mixed_pool(label);
    let begin = |(number, kind)| Transfer::begin(&pool, kind, number);
    let kinds = KINDS
        .iter()
        .flat_map(|kind| std::iter::repeat_n(kind, TRANSFERS_PER_KIND));
    let mut transfers: Vec<Transfer> = kinds.enumerate().map(begin).collect();
    for transfer in &mut transfers {
        let enough = u64::try_from(transfer.before).expect("a length") + PART_BYTES;
        wait_until("a transfer is under way", || {
            transfer.len() >= enough || transfer.program.try_wait().expect("a child").is_some()
        });
    }
    pool.members[dies].program.host.power_off().expect("off");
    let wrong: Vec<String> = transfers.into_iter().filter_map(Transfer::finish).collect();
    let alive = &pool.members[1 - dies].program;
    let refused = alive.events_of("refused");
    assert!(wrong.is_empty(), "{wrong:#?} {refused:#?}");
    assert!(
        !alive.events_of("revived").is_empty(),
        "no transfer was hit"
    );
    for event in refused {
        let reason = event["reason"].as_str().expect("a reason");
        assert!(reason.contains("not protected"), "{event}");
    }
    pool.stop();
}

#[test]
fn transfers_survive_the_loss_of_nginx() {
    transfers_survive("objects-curl-nginx", 0);
}

#[test]
fn transfers_survive_the_loss_of_lighttpd() {
    transfers_survive("objects-curl-lighttpd", 1);
}

/// One connection for a large object, HEAD and small objects, as `curl --next` uses it.
#[test]
fn connection_that_stays_survives_in_each_response() {
    let mut pool = mixed_pool("objects-curl-next");
    let url = |path: &str| format!("http://{}/{path}", pool_addresses()[0]);
    let directory = pool.scene.directory().to_owned();
    let out = |name: String| directory.join(name).to_string_lossy().into_owned();
    let programs: Vec<Child> = (0..4)
        .map(|number| {
            let mut command = pool.scene.client.command("curl");
            command.args(["-q", "-sS", "-N", "--limit-rate", "2M", "--fail-early"]);
            command.args(["-o", &out(format!("big-{number}")), &url("big.bin")]);
            command.args([
                "--next",
                "-sS",
                "-I",
                "-o",
                &out(format!("head-{number}")),
                &url("big.bin"),
            ]);
            for small in 0..10 {
                let path = out(format!("small-{number}-{small}"));
                command.args([
                    "--next",
                    "-sS",
                    "-o",
                    &path,
                    &url(&format!("small/{small}")),
                ]);
            }
            command.stdin(Stdio::null()).spawn().expect("curl")
        })
        .collect();
    for number in 0..4 {
        let file = out(format!("big-{number}"));
        wait_until("the object comes", || {
            fs::metadata(&file).is_ok_and(|file| file.len() >= PART_BYTES)
        });
    }
    pool.members[0].program.host.power_off().expect("off");
    for (number, mut program) in programs.into_iter().enumerate() {
        let status = program.wait().expect("an end");
        let refused = pool.members[1].program.events_of("refused");
        assert!(status.success(), "{status}: {refused:?}");
        let big = fs::read(out(format!("big-{number}"))).expect("a file");
        assert_same_bytes("large object", &pattern(BIG_FILE_BYTES), &big);
        for small in 0..10 {
            let got = fs::read(out(format!("small-{number}-{small}"))).expect("a file");
            assert_same_bytes("small object", &pattern(500 + small * 700), &got);
        }
    }
    pool.members.truncate(2);
    pool.stop();
}
