//! What is set up before anything happens: hosts, nginx's files and configuration.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lab::{Host, Lab};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::nginx;

/// Size of the file that is downloaded and uploaded, bytes.
pub(crate) const LARGE: usize = 200_000_000;
/// Size of the file that slow clients fetch, bytes.
pub(crate) const MEDIUM: usize = 1 << 20;
/// How many small files there are.
pub(crate) const SMALL_FILES: usize = 200;

/// A lab with `client` at 10.0.0.1, `server` at 10.0.0.10, perhaps `logger` at 10.0.0.20, and a
/// directory with all that they read and write.
pub(crate) struct Stage {
    pub(crate) client: Host,
    pub(crate) server: Host,
    pub(crate) logger: Option<Host>,
    directory: PathBuf,
    lab: Lab,
}

impl Stage {
    /// Makes the hosts and writes the files, their contents made from `seed`.
    pub(crate) fn build(seed: u64, with_logger: bool) -> Result<Self> {
        let lab = Lab::new("demo")?;
        let client = lab.add_host_at("client", 1)?;
        let server = lab.add_host_at("server", 10)?;
        let logger = with_logger.then(|| lab.add_host_at("logger", 20));
        let logger = logger.transpose()?;
        // Buffers on the client's side hide a pause from the program that is measured: with
        // these they hide at most some 20 ms of a transfer.
        client.sysctl("net.ipv4.tcp_rmem", "4096 131072 262144")?;
        client.sysctl("net.ipv4.tcp_wmem", "4096 65536 262144")?;
        let directory = lab.directory().to_owned();
        let stage = Self {
            client,
            server,
            logger,
            directory,
            lab,
        };
        stage
            .write_files(seed)
            .context("cannot write the files for the demo")?;
        Ok(stage)
    }

    /// Where a file of the web site is.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join("www").join(name)
    }

    /// Where a file is that is not nginx's.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// nginx's configuration.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.directory.join("nginx.conf")
    }

    /// Uploads in progress, as nginx keeps them.
    pub(crate) fn bodies(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.join("body"));
        entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect()
    }

    /// Removes hosts, their processes and all files.
    pub(crate) fn remove(self) -> Result<()> {
        self.lab.remove().context("not everything could be removed")
    }

    fn write_files(&self, seed: u64) -> Result<()> {
        let mut random = SmallRng::seed_from_u64(seed);
        fs::create_dir_all(self.file("small"))?;
        write_random(&self.file("large"), LARGE, &mut random)?;
        write_random(&self.file("medium"), MEDIUM, &mut random)?;
        for number in 0..SMALL_FILES {
            let size = random.random_range(1_000..10_000);
            write_random(&self.file(&small(number)), size, &mut random)?;
        }
        let address = self.server.address();
        let addresses = [
            SocketAddr::new(address.ipv4().into(), 80),
            SocketAddr::new(address.ipv6().into(), 80),
        ];
        let text = nginx::configuration(&self.directory, &addresses);
        fs::write(self.configuration(), text)?;
        Ok(())
    }
}

/// The name of a small file.
pub(crate) fn small(number: usize) -> String {
    format!("small/{number}")
}

fn write_random(path: &Path, size: usize, random: &mut SmallRng) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut block = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        let length = left.min(block.len());
        random.fill_bytes(&mut block[..length]);
        file.write_all(&block[..length])?;
        left -= length;
    }
    file.flush()?;
    Ok(())
}
