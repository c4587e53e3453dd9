//! Captures: the frames that an interface of a host sends and receives, kept by tcpdump.
//!
//! Both ends of a capture are exact. A capture begins only when tcpdump reports that tcpdump listens. A capture ends
//! with a closing frame of this module on the same interface: when the closing frame is in the file, all frames before
//! are in the file too, however late tcpdump reads. The closing frame goes to an address that bridges never forward
//! (IEEE 802.1Q, table 8-1), so no other host sees the frame.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;
use crate::error::Doing;
use crate::namespace::Namespace;
use crate::packet_socket::PacketSocket;
use crate::pcap::{self, Packet};

/// How long the last frame may take to reach the file.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The start of a closing frame: to the nearest bridge only, from an unused sender address, with the first EtherType
/// for local experiments, and the lab's name.
const CLOSING_FRAME: &[u8] =
    b"\x01\x80\xc2\x00\x00\x0e\x02\x00\x00\x00\xff\xff\x88\xb5outlive lab: end of capture ";

/// Captures of this process, to tell files and closing frames of captures apart.
static CAPTURE_COUNT: AtomicU64 = AtomicU64::new(0);

/// A running capture. A drop ends the capture and removes the file.
#[derive(Debug)]
pub struct Capture {
    namespace: Arc<Namespace>,
    interface: String,
    number: u64,
    path: PathBuf,
    tcpdump: Child,
    stderr: BufReader<ChildStderr>,
}

/// The result of a capture.
#[derive(Clone, Debug)]
pub struct Captured {
    /// The frames in the order of arrival.
    pub packets: Vec<Packet>,
    /// The number of frames that passed the filter and are missing because tcpdump was too slow; `None` when tcpdump
    /// was killed before the report. Evidence that a frame was *not* sent needs a zero here.
    pub missed: Option<u64>,
}

impl Capture {
    pub(crate) fn start(
        namespace: &Arc<Namespace>,
        directory: &Path,
        interface: &str,
        filter: &str,
    ) -> Result<Self, Error> {
        let number = CAPTURE_COUNT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("{number}.pcap"));
        let mut command = namespace.command("tcpdump");
        command
            .args(["-i", interface, "-n", "-s", "0", "-U", "--immediate-mode"])
            // 32 MiB for frames that arrive while tcpdump does not run. tcpdump stays root: another user could not
            // write the file.
            .args(["-B", "32768", "-Z", "root", "--time-stamp-precision=nano"])
            .arg("-w")
            .arg(&path);
        if !filter.is_empty() {
            command.arg(format!("({filter}) or ether proto 0x88b5"));
        }
        let mut tcpdump = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .doing(|| "start `tcpdump`".to_owned())?;
        let Some(stderr) = tcpdump.stderr.take() else {
            return Err(io::Error::other("no pipe")).doing(|| "read from tcpdump".to_owned());
        };
        let mut capture = Self {
            namespace: Arc::clone(namespace),
            interface: interface.to_owned(),
            number,
            path,
            tcpdump,
            stderr: BufReader::new(stderr),
        };
        capture.await_listening()?;
        Ok(capture)
    }

    /// Ends the capture and returns all frames up to now. When tcpdump was killed meanwhile, for instance with the
    /// host, the result ends there.
    ///
    /// # Errors
    /// [`Error::CaptureUnfinished`]; [`Error::Pcap`] or [`Error::Io`] when the file cannot
    /// be read.
    pub fn finish(mut self) -> Result<Captured, Error> {
        if self.is_running()? {
            self.close()?;
            let _ = kill_process(Pid::from_child(&self.tcpdump), Signal::INT);
        }
        let mut stderr = String::new();
        self.stderr
            .read_to_string(&mut stderr)
            .doing(|| "read from tcpdump".to_owned())?;
        let mut packets = self.so_far()?;
        packets.retain(|packet| !packet.frame.starts_with(CLOSING_FRAME));
        Ok(Captured {
            packets,
            missed: missed(&stderr),
        })
    }

    /// The frames that are in the file already. The newest frames may be missing.
    ///
    /// # Errors
    /// [`Error::Pcap`] or [`Error::Io`] when the file cannot be read.
    pub fn so_far(&self) -> Result<Vec<Packet>, Error> {
        let bytes = fs::read(&self.path).doing(|| format!("read {}", self.path.display()))?;
        // Killed at once, tcpdump may not have written even the header.
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        Ok(pcap::read(&bytes)?.packets)
    }

    /// Reads until tcpdump reports that tcpdump listens.
    fn await_listening(&mut self) -> Result<(), Error> {
        let mut said = String::new();
        loop {
            let start = said.len();
            let length = self
                .stderr
                .read_line(&mut said)
                .doing(|| "read from tcpdump".to_owned())?;
            if length == 0 {
                return Err(Error::CaptureNotListening {
                    interface: self.interface.clone(),
                    stderr: said.trim().to_owned(),
                });
            }
            if said[start..].contains("listening on") {
                return Ok(());
            }
        }
    }

    fn is_running(&mut self) -> Result<bool, Error> {
        let status = self.tcpdump.try_wait();
        Ok(status.doing(|| "wait for tcpdump".to_owned())?.is_none())
    }

    /// Sends the closing frame, and waits until the frame is in the file or tcpdump is dead.
    fn close(&mut self) -> Result<(), Error> {
        let path = self.path.display().to_string();
        let mut file = File::open(&self.path).doing(|| format!("open {path}"))?;
        file.seek(SeekFrom::End(0))
            .doing(|| format!("read {path}"))?;
        let closing = [CLOSING_FRAME, &self.number.to_be_bytes()].concat();
        self.namespace
            .enter(|| PacketSocket::open(&self.interface, false)?.send(&closing))?
            .doing(|| format!("send the end of the capture on {}", self.interface))?;
        let deadline = Instant::now() + END_LIMIT;
        let mut tail = Vec::new();
        loop {
            file.read_to_end(&mut tail)
                .doing(|| format!("read {path}"))?;
            let found = tail.windows(closing.len()).any(|part| part == closing);
            if found || !self.is_running()? {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::CaptureUnfinished {
                    interface: self.interface.clone(),
                });
            }
            // The frame may come in two reads.
            tail.drain(..tail.len().saturating_sub(closing.len()));
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Both fail only when tcpdump has ended already.
        let _ = self.tcpdump.kill();
        let _ = self.tcpdump.wait();
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "a capture's file is not there");
        }
    }
}

/// The number in tcpdump's `3 packets dropped by kernel`.
fn missed(stderr: &str) -> Option<u64> {
    let line = stderr.lines().find(|l| l.contains("dropped by kernel"))?;
    line.split_whitespace().next()?.parse().ok()
}
