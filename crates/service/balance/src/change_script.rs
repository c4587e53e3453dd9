//! A program of the operator that runs after each change of the table: for other load balancers.

use std::{
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use protocol::pool::Table;

use crate::{
    error::{BalanceError, SystemContext},
    etcd::table_json,
};

/// Pause before the next run after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Runs the program in a thread of its own: no run delays a lease. Of several changes during a run, the last one
/// counts.
pub(crate) struct ChangeScript {
    tables: mpsc::Sender<Table>,
    failures: mpsc::Receiver<String>,
    woken: UnixStream,
}

struct Runner {
    program: PathBuf,
    pool: String,
    service: String,
}

impl ChangeScript {
    pub(crate) fn start(
        program: &Path,
        pool: &str,
        service: &[SocketAddr],
    ) -> Result<Self, BalanceError> {
        let (tables, changes) = mpsc::channel::<Table>();
        let (failed, failures) = mpsc::channel();
        let doing = "start a thread for --on-change";
        let (woken, wake) = UnixStream::pair().doing(doing)?;
        woken.set_nonblocking(true).doing(doing)?;
        let service: Vec<String> = service.iter().map(ToString::to_string).collect();
        let runner = Runner {
            program: program.to_owned(),
            pool: pool.to_owned(),
            service: service.join(" "),
        };
        std::thread::Builder::new()
            .name("on-change".into())
            .spawn(move || {
                let mut next = changes.recv().ok();
                while let Some(table) = next {
                    let table = changes.try_iter().last().unwrap_or(table);
                    next = match runner.run(&table) {
                        Ok(()) => changes.recv().ok(),
                        Err(reason) => {
                            let _ = failed.send(reason);
                            let _ = (&wake).write_all(&[1]);
                            match changes.recv_timeout(RETRY_PAUSE) {
                                Ok(newer) => Some(newer),
                                Err(mpsc::RecvTimeoutError::Timeout) => Some(table),
                                Err(mpsc::RecvTimeoutError::Disconnected) => None,
                            }
                        }
                    };
                }
            })
            .doing(doing)?;
        Ok(Self {
            tables,
            failures,
            woken,
        })
    }

    pub(crate) fn on_table(&self, table: &Table) {
        // The thread lives as long as this end of the channel.
        let _ = self.tables.send(table.clone());
    }

    /// Readable after a failure.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Why a run failed.
    pub(crate) fn failure(&self) -> Option<String> {
        let mut sink = [0; 64];
        while (&self.woken)
            .read(&mut sink)
            .is_ok_and(|read| read == sink.len())
        {}
        self.failures.try_iter().last()
    }
}

impl Runner {
    fn run(&self, table: &Table) -> Result<(), String> {
        let program = self.program.display();
        let status = self.status(table);
        let status = status.map_err(|error| format!("cannot run {program}: {error}"))?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("{program} has failed: {status}")),
        }
    }

    fn status(&self, table: &Table) -> io::Result<std::process::ExitStatus> {
        let serving = table.members.iter().filter(|member| !member.draining);
        let serving: Vec<String> = serving.map(|it| it.address.to_string()).collect();
        let mut child = Command::new(&self.program)
            .env("OUTLIVE_POOL", &self.pool)
            .env("OUTLIVE_SERVICE", &self.service)
            .env("OUTLIVE_EPOCH", table.epoch.to_string())
            .env("OUTLIVE_MEMBERS", serving.join(" "))
            .stdin(Stdio::piped())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // A program that does not read the table has the environment.
            let _ = input.write_all(table_json(table).as_bytes());
        }
        child.wait()
    }
}
