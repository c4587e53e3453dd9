//! The thread that writes the log: datagrams must not wait for a disk.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use wal::{Batch, Log};

use super::disk::Disk;
use crate::durable::{Order, write};

/// The result of an order.
#[derive(Debug)]
pub(super) enum Report {
    /// Result of [`Order::Write`], with the batch for reuse.
    Written(Batch),
    /// Result of [`Order::Restart`]: the current log file.
    Restarted(u64),
    /// An order failed. The old log has been removed as far as possible, lest a later reading trust the log.
    Failed(String),
}

/// The loop's side of the thread.
pub(super) struct Writer {
    orders: Sender<Order>,
    reports: Receiver<Report>,
    woken: UnixStream,
    thread: thread::JoinHandle<()>,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(log: Log<Disk>) -> io::Result<Self> {
        let (orders, received) = channel();
        let (report, reports) = channel();
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let thread = thread::Builder::new()
            .name("log".into())
            .spawn(move || run(log, &received, &report, wake))?;
        Ok(Self {
            orders,
            reports,
            woken,
            thread,
        })
    }

    /// Ends the idle thread, and frees the directory.
    pub(super) fn end(self) {
        drop(self.orders);
        // The thread does not panic; a panic there must not cause a panic here.
        let _ = self.thread.join();
    }

    pub(super) fn order(&self, order: Order) {
        // The thread ends only when `self` is dropped, or by a panic. After a panic no report comes, and the commit
        // counts as too slow.
        let _ = self.orders.send(order);
    }

    /// The next report, if any.
    pub(super) fn report(&mut self) -> Option<Report> {
        let mut bytes = [0; 64];
        while self.woken.read(&mut bytes).is_ok_and(|len| len > 0) {}
        self.reports.try_recv().ok()
    }

    /// The next report, if a report comes within `most`.
    pub(super) fn wait(&self, most: Duration) -> Option<Report> {
        self.reports.recv_timeout(most).ok()
    }
}

/// Readable when there is a report.
impl AsFd for Writer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

fn run(log: Log<Disk>, orders: &Receiver<Order>, reports: &Sender<Report>, mut wake: UnixStream) {
    let mut files = Files::Log(log);
    for order in orders {
        let (next, report) = files.carry_out(order);
        files = next;
        if reports.send(report).is_err() {
            return;
        }
        // A full socket contains earlier wake-ups.
        let _ = wake.write(&[1]);
    }
}

enum Files {
    Log(Log<Disk>),
    /// After a failure.
    Disk(Disk),
}

impl Files {
    fn carry_out(self, order: Order) -> (Self, Report) {
        match (self, order) {
            (Self::Log(mut log), Order::Write(mut job)) => match write(&mut log, &mut job) {
                Ok(()) => (Self::Log(log), Report::Written(job.batch)),
                Err(error) => failed(log.into_storage(), &error.to_string()),
            },
            (Self::Disk(disk), Order::Write(_)) => {
                (Self::Disk(disk), Report::Failed("there is no log".into()))
            }
            (Self::Log(log), Order::Restart) => begin_anew(log.into_storage()),
            (Self::Disk(disk), Order::Restart) => begin_anew(disk),
        }
    }
}

fn begin_anew(mut disk: Disk) -> (Files, Report) {
    if let Err(error) = disk.clear() {
        return (Files::Disk(disk), Report::Failed(error.to_string()));
    }
    match Log::open(disk, |_| ()) {
        Ok(log) => {
            let current = log.current();
            (Files::Log(log), Report::Restarted(current))
        }
        Err((disk, error)) => failed(disk, &error.to_string()),
    }
}

fn failed(mut disk: Disk, why: &str) -> (Files, Report) {
    let left = disk.clear().err();
    let left = left.map_or_else(String::new, |error| {
        format!(" (and what there was cannot be removed: {error})")
    });
    (Files::Disk(disk), Report::Failed(format!("{why}{left}")))
}
