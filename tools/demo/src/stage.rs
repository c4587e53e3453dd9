//! Hosts, files and configurations of the servers.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lab::{Address, Host, Lab};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::server::{Server, mosquitto_configuration};
use harness::nginx;

/// Size of the file that is downloaded and uploaded.
pub(crate) const LARGE_FILE_BYTES: usize = 200_000_000;
/// Size of the file that slow clients fetch.
pub(crate) const MEDIUM_FILE_BYTES: usize = 3 << 19;
/// Number of small files.
pub(crate) const SMALL_FILES: usize = 200;

/// A lab with `client` at 10.0.0.1, `host-a` at 10.0.0.10, perhaps `host-b` at 10.0.0.11 and `logger` at 10.0.0.20,
/// and a directory of files.
pub(crate) struct Stage {
    pub(crate) client: Host,
    /// The hosts of the servers; only one without a logger.
    pub(crate) servers: Vec<Host>,
    pub(crate) logger: Option<Host>,
    /// Addresses of each server, independent of the host.
    places: [Address; Server::ALL.len()],
    directory: PathBuf,
    lab: Lab,
}

impl Stage {
    /// Makes the hosts and the files, with contents from `seed`.
    pub(crate) fn build(seed: u64, with_logger: bool) -> Result<Self> {
        let lab = Lab::new("demo")?;
        let client = lab.add_host_at("client", 1)?;
        let mut servers = vec![lab.add_host_at("host-a", 10)?];
        let (mut logger, mut places) = (None, [servers[0].address(); Server::ALL.len()]);
        if with_logger {
            servers.push(lab.add_host_at("host-b", 11)?);
            logger = Some(lab.add_host_at("logger", 20)?);
            // Addresses of no host: each comes and goes with a service.
            places = [
                Address::new(0, 100)?,
                Address::new(0, 101)?,
                Address::new(0, 102)?,
            ];
        }
        // Buffers on the client's side hide a pause from the measured program: buffers of this size hide at most some
        // 20 ms of a transfer.
        client.sysctl("net.ipv4.tcp_rmem", "4096 131072 262144")?;
        client.sysctl("net.ipv4.tcp_wmem", "4096 65536 262144")?;
        let directory = lab.directory().to_owned();
        let stage = Self {
            client,
            servers,
            logger,
            places,
            directory,
            lab,
        };
        stage
            .write_files(seed)
            .context("cannot write the files for the demo")?;
        Ok(stage)
    }

    /// Addresses of a server, by IPv4 and IPv6.
    pub(crate) fn addresses(&self, server: Server) -> [SocketAddr; 2] {
        let place = self.places[server as usize];
        let ips = [place.ipv4().into(), place.ipv6().into()];
        ips.map(|ip| SocketAddr::new(ip, server.port()))
    }

    /// The directory of all files.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of a file of the web site.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join("www").join(name)
    }

    /// Path of another file.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Configuration of a server; redis has none.
    pub(crate) fn configuration(&self, server: Server) -> PathBuf {
        self.directory.join(format!("{server}.conf"))
    }

    /// Uploads in progress in nginx's directory.
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
        write_random(&self.file("large"), LARGE_FILE_BYTES, &mut random)?;
        write_random(&self.file("medium"), MEDIUM_FILE_BYTES, &mut random)?;
        for number in 0..SMALL_FILES {
            let size = random.random_range(1_000..10_000);
            write_random(&self.file(&small(number)), size, &mut random)?;
        }
        let text = nginx::configuration(&self.directory, &self.addresses(Server::Nginx));
        fs::write(self.configuration(Server::Nginx), text)?;
        let [address, _] = self.addresses(Server::Mosquitto);
        let text = mosquitto_configuration(address);
        fs::write(self.configuration(Server::Mosquitto), text)?;
        Ok(())
    }
}

/// The name of a small file.
pub(crate) fn small(number: usize) -> String {
    format!("small/{number}")
}

pub(crate) fn write_random(path: &Path, size: usize, random: &mut SmallRng) -> Result<()> {
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
