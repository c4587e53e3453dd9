//! The clients of the pool: unmodified programs that never try again.
//!
//! Each long download is the first response on its connection: of a later response, only the first 24 KiB are protected
//! (docs/objects.md, "Protected connections").

use std::fs::{self, File};
use std::io::{BufReader, Read as _};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use lab::Host;

use super::report::Outcome;
use super::site::{DEB, SMALL_COUNT, Site, WHEEL};
use crate::compare::{Pauses, same};
use crate::program::Program;

/// Names of the pool for pip, as pypi.org and files.pythonhosted.org: pip has a connection for each.
const INDEX_NAME: &str = "index.pool";
pub(super) const FILES_NAME: &str = "files.pool";
/// Runs a program that finds these names in the file `$0`. The names of the host stay.
const WITH_NAMES: &str = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
/// Bytes that wget has of an earlier download.
const PART_BYTES: u64 = 1_000_000;
/// Parts of aria2's download; each has a connection.
const PART_COUNT: usize = 8;

/// A kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    Curl,
    KeepAlive,
    Wget,
    Aria2,
    Ffmpeg,
    Apt,
    Pip,
}

/// The surroundings of a client.
pub(super) struct Home<'a> {
    pub(super) host: &'a Host,
    pub(super) site: &'a Site,
    /// The pool.
    pub(super) url: &'a str,
    /// A new directory of the client.
    pub(super) directory: PathBuf,
    /// Time without a byte after which the client gives up.
    pub(super) give_up_seconds: u32,
    pub(super) given_up: &'a AtomicBool,
}

impl Client {
    /// Each kind, and how many.
    pub(super) const ALL: [(Self, usize); 7] = [
        (Self::Curl, 8),
        (Self::KeepAlive, 2),
        (Self::Wget, 4),
        (Self::Aria2, 2),
        (Self::Ffmpeg, 2),
        (Self::Apt, 2),
        (Self::Pip, 2),
    ];

    /// Has the client no limit of its own for its rate?
    pub(super) fn is_fast(self) -> bool {
        matches!(self, Self::Apt | Self::Pip)
    }

    /// Prepares all that a user of this client has before the download.
    pub(super) fn prepare(self, home: &Home<'_>) -> Result<()> {
        fs::create_dir(&home.directory)?;
        match self {
            Self::Wget => {
                let mut part = Vec::new();
                let object = File::open(home.site.object("object"))?;
                object.take(PART_BYTES).read_to_end(&mut part)?;
                fs::write(home.directory.join("object"), part)?;
            }
            Self::Apt => {
                write_apt_configuration(home)?;
                // The index has names that no server knows (404), and these responses are not protected.
                home.run(&apt(home, &["update"]), &mut Vec::new())?;
            }
            Self::Pip => {
                let address = home.url.trim_start_matches("http://");
                let names = format!("{address} {INDEX_NAME} {FILES_NAME}\n");
                fs::write(home.directory.join("hosts"), names)?;
            }
            Self::Curl | Self::KeepAlive | Self::Aria2 | Self::Ffmpeg => {}
        }
        Ok(())
    }

    /// Runs the client to the end, and compares all bytes.
    pub(super) fn fetch(self, home: &Home<'_>) -> Result<Outcome> {
        let words = self.words(home);
        let mut pauses = Pauses::default();
        let bytes = match self {
            Self::Curl => {
                let expected = BufReader::new(File::open(home.site.object("object"))?);
                let mut program = home.start(&words)?;
                let bytes = same(program.output()?, expected, || pauses.progress())?;
                program.finish()?;
                bytes
            }
            Self::KeepAlive => {
                let expected = home.site.all_small()?;
                let mut program = home.start(&words)?;
                let bytes = same(program.output()?, &expected[..], || {})?;
                let said = program.finish()?;
                let connects = said
                    .split(',')
                    .filter_map(|count| count.parse::<u32>().ok());
                let count: u32 = connects.sum();
                ensure!(count == 1, "{count} connections, not 1");
                bytes
            }
            Self::Wget | Self::Aria2 | Self::Ffmpeg | Self::Apt | Self::Pip => {
                let mut output = Vec::new();
                let said = home.run(&words, &mut output)?;
                self.check_requests(&said, &String::from_utf8_lossy(&output))?;
                let (got, expected) = self.files(home)?;
                let got = File::open(&got).with_context(|| format!("no {}", got.display()))?;
                let expected = File::open(expected)?;
                same(BufReader::new(got), BufReader::new(expected), || {})?
            }
        };
        ensure!(bytes > 0, "no byte came");
        Ok(Outcome {
            bytes,
            pause: pauses.longest(),
        })
    }

    fn words(self, home: &Home<'_>) -> Vec<String> {
        let url = home.url;
        let directory = home.directory.to_string_lossy();
        let give_up = &home.give_up_seconds.to_string();
        match self {
            Self::Curl => strings(&[
                "curl -sS --no-buffer --limit-rate 4M --speed-limit 1 --speed-time",
                give_up,
                &format!("{url}/object"),
            ]),
            // curl connects anew in secret when an idle connection is reset, so the connections are counted.
            Self::KeepAlive => strings(&[
                "curl -sS --no-buffer --rate 10/s --fail-early --max-time",
                give_up,
                "-w %{stderr}%{num_connects},",
                &format!("{url}/small/[1-{SMALL_COUNT}]"),
            ]),
            Self::Wget => strings(&[
                "wget --continue -q --tries=1 --limit-rate=4m --read-timeout",
                give_up,
                &format!("--directory-prefix={directory} {url}/object"),
            ]),
            // The log has each request.
            Self::Aria2 => strings(&[
                &format!("aria2c --no-conf -x{PART_COUNT} -s{PART_COUNT} --min-split-size=3M"),
                "--max-tries=1 --max-overall-download-limit=6M --file-allocation=none",
                "--quiet --log=- --log-level=info --timeout",
                give_up,
                &format!("--dir={directory} {url}/image"),
            ]),
            // `-re` reads as fast as the video is shown.
            Self::Ffmpeg => strings(&[
                "ffmpeg -nostdin -loglevel error -re -http_persistent 0",
                &format!(
                    "-rw_timeout {give_up}000000 -i {url}/video/index.m3u8 -c copy {directory}/video.ts"
                ),
            ]),
            Self::Apt => apt(home, &["download", "object"]),
            Self::Pip => pip(&directory, give_up),
        }
    }

    /// A client may ask again in secret, so its log of requests is counted.
    fn check_requests(self, errors: &str, output: &str) -> Result<()> {
        let (log, request, wanted) = match self {
            Self::Aria2 => (output, "GET /image ", PART_COUNT),
            Self::Apt => (errors, "GET /apt/", 1),
            _ => return Ok(()),
        };
        let count = log.matches(request).count();
        ensure!(count == wanted, "{count} requests, not {wanted}");
        Ok(())
    }

    /// The file of the client, and the file to compare with.
    fn files(self, home: &Home<'_>) -> Result<(PathBuf, PathBuf)> {
        let expected = match self {
            Self::Aria2 => home.site.object("image"),
            Self::Ffmpeg => home.site.video(),
            Self::Apt => home.site.object(DEB),
            Self::Pip => home.site.object(WHEEL),
            Self::Curl | Self::KeepAlive | Self::Wget => home.site.object("object"),
        };
        let name = expected.file_name().context("a file")?;
        Ok((home.directory.join(name), expected))
    }
}

impl Home<'_> {
    fn start(&self, words: &[String]) -> Result<Program> {
        let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        Program::on(self.host, self.given_up, &words[0], &arguments)
    }

    /// Runs a program to the end, and returns standard error.
    fn run(&self, words: &[String], output: &mut Vec<u8>) -> Result<String> {
        let mut program = self.start(words)?;
        program.output()?.read_to_end(output)?;
        program.finish()
    }
}

/// The words of all parts. No path has a space.
fn strings(parts: &[&str]) -> Vec<String> {
    let words = parts.iter().flat_map(|part| part.split_whitespace());
    words.map(str::to_owned).collect()
}

/// A command of pip, without configuration and cache.
fn pip(directory: &str, give_up: &str) -> Vec<String> {
    let mut words = strings(&["unshare --mount sh -c"]);
    words.push(WITH_NAMES.to_owned());
    words.extend(strings(&[
        &format!("{directory}/hosts /usr/bin/python3 -m pip --isolated download"),
        "--no-deps --no-cache-dir --disable-pip-version-check --quiet",
        "--progress-bar off --retries 0 --timeout",
        give_up,
        &format!("--trusted-host {INDEX_NAME} --trusted-host {FILES_NAME}"),
        &format!("--index-url http://{INDEX_NAME}/pip/simple --dest {directory} object"),
    ]));
    words
}

/// A command of apt-get with its own configuration, in the client's directory.
fn apt(home: &Home<'_>, arguments: &[&str]) -> Vec<String> {
    let directory = home.directory.to_string_lossy();
    let program = format!("env -C {directory} APT_CONFIG={directory}/apt.conf apt-get -q");
    strings(&[&program, &arguments.join(" ")])
}

/// All files of apt are below the client's directory: nothing of the host is read or changed.
fn write_apt_configuration(home: &Home<'_>) -> Result<()> {
    let directory = &home.directory;
    for name in [
        "etc/apt/apt.conf.d",
        "etc/apt/preferences.d",
        "var/lib/apt/lists/partial",
        "var/cache/apt/archives/partial",
    ] {
        fs::create_dir_all(directory.join(name))?;
    }
    let list = format!("deb [trusted=yes] {}/apt ./\n", home.url);
    fs::write(directory.join("etc/apt/sources.list"), list)?;
    fs::write(directory.join("status"), "")?;
    let configuration = format!(
        "Dir \"{0}/\";
Dir::State::status \"{0}/status\";
APT::Sandbox::User \"root\";
Acquire::Languages \"none\";
Acquire::Retries \"0\";
Acquire::http::Proxy \"DIRECT\";
Acquire::http::Timeout \"{1}\";
Debug::Acquire::http \"true\";
",
        directory.display(),
        home.give_up_seconds
    );
    Ok(fs::write(directory.join("apt.conf"), configuration)?)
}
