//! Answers to clients.

use std::{
    fs::File,
    io,
    os::unix::net::{UnixListener, UnixStream},
    sync::Arc,
    time::{Duration, Instant},
};

use conceal::members::{Members, hurry};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Engine, UserMake, microseconds, peer};
use crate::{
    command::Command,
    job::Job,
    jobserver,
    link::{self, Gain, PlainRun, Reply, Request, Taken},
    listener::{CountGuard, listen_to},
    repositories::without_git_discovery,
};

/// Number of ancestors in which the make of the user is looked for.
const ANCESTOR_LIMIT: usize = 64;

fn parent_of(process: u32) -> Option<u32> {
    let about = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may contain any byte.
    let (_, after) = about.rsplit_once(')')?;
    after.split_whitespace().nth(1)?.parse().ok()
}

impl Engine {
    /// Answers one client.
    ///
    /// # Errors
    /// The errors of the socket.
    pub fn serve(&self, mut asker: UnixStream) -> io::Result<()> {
        let (streams, request) = link::receive_request(&mut asker)?;
        let streams = streams.map(File::from);
        let reply = match request {
            Request::Status => Reply::Status(self.standing()),
            Request::Stop => {
                self.stoppers().wait.push(asker);
                self.stop();
                return Ok(());
            }
            // The file of the answer would be removed soon.
            Request::Make(_) if self.is_over() => Reply::PlainRun(PlainRun::default()),
            Request::Make(command) => {
                self.asked().add(command.clone());
                let why = self.unexpected(&command);
                match self.run_for_user(&command, true, streams, &mut asker) {
                    Some((status, gain)) => Reply::Done(status, gain),
                    None => {
                        self.is_users_own(peer(&asker)?)?;
                        Reply::PlainRun(PlainRun {
                            also: self.preload.environment(&command),
                            why,
                            beside: None,
                        })
                    }
                }
            }
            Request::Taken => Reply::Taken(self.taken_by(peer(&asker)?)),
            Request::Run(command) => self.run_for_make(command, streams, &mut asker)?,
        };
        link::send(&mut asker, &reply)
    }

    /// Registers a make of the user, or a process that becomes one.
    fn is_users_own(&self, process: u32) -> io::Result<()> {
        if let Some(process) = Pid::from_raw(process.cast_signed()) {
            let alive = pidfd_open(process, PidfdFlags::empty())?;
            let taken = Taken::default();
            self.own().push(UserMake {
                process,
                alive,
                taken,
            });
        }
        Ok(())
    }

    fn taken_by(&self, process: u32) -> Taken {
        let is_it = |make: &&UserMake| make.process.as_raw_pid().cast_unsigned() == process;
        let own = self.own();
        let make = own.iter().rev().find(is_it);
        make.map_or_else(Taken::default, |make| make.taken)
    }

    /// Counts a reused command for the make of the user that is an ancestor of the process.
    fn is_taken_by(&self, mut process: u32, worked: Duration, waited: Duration) {
        let mut own = self.own();
        for _ in 0..ANCESTOR_LIMIT {
            let number = process.cast_signed();
            let its = own
                .iter_mut()
                .rev()
                .find(|make| make.process.as_raw_pid() == number);
            if let Some(make) = its {
                make.taken.commands += 1;
                make.taken.worked += microseconds(worked);
                make.taken.waited += microseconds(waited);
                return;
            }
            match parent_of(process) {
                Some(parent) if parent > 1 => process = parent,
                _ => return,
            }
        }
    }

    /// Runs a command of a make, or tells the client to run the command.
    fn run_for_make(
        &self,
        command: Command,
        streams: [File; 3],
        asker: &mut UnixStream,
    ) -> io::Result<Reply> {
        let process = peer(asker)?;
        let done = match self.asker_of(process) {
            Some(parent) if parent.progress().is_committed => {
                return Ok(Reply::PlainRun(Self::beside(&parent, &command, process)));
            }
            Some(parent) => {
                let [_, out, err] = streams;
                let told = without_git_discovery(command.clone(), &parent.command);
                let done = self.run_for(&parent, &told, [out, err], asker);
                if done.is_none() && parent.progress().is_committed {
                    return Ok(Reply::PlainRun(Self::beside(&parent, &command, process)));
                }
                done.map(|status| (status, Gain::default()))
            }
            None => {
                let began = Instant::now();
                self.run_for_user(&command, false, streams, asker)
                    .map(|(status, gain)| {
                        let worked = Duration::from_micros(gain.worked);
                        self.is_taken_by(process, worked, began.elapsed());
                        (status, gain)
                    })
            }
        };
        Ok(done.map_or_else(
            || Reply::PlainRun(PlainRun::default()),
            |(status, gain)| Reply::Done(status, gain),
        ))
    }

    /// A command of a requested make runs as a command of the user, and so does a make.
    fn beside(parent: &Job, command: &Command, process: u32) -> PlainRun {
        // A named jobserver exists only in the mounts of the make that created the name.
        let is_leaving = !jobserver::had_name(command);
        if is_leaving {
            parent.is_left_by_some();
            // A process that raises the priority of its make would not find the make.
            hurry(process);
        }
        PlainRun {
            beside: is_leaving.then(std::process::id),
            ..PlainRun::default()
        }
    }

    /// The job of the client. A job that begins just now is waited for, except for makes of the user.
    fn asker_of(&self, process: u32) -> Option<Arc<Job>> {
        if Members::with(process).ok() == self.outsiders {
            return None;
        }
        self.of_process(process).or_else(|| {
            drop(self.beginning.write());
            self.of_process(process)
        })
    }

    /// Answers all clients, for ever.
    pub fn listen(self: &Arc<Self>, listener: &UnixListener) {
        listen_to(listener, || {
            let this = Arc::clone(self);
            move |asker| {
                let _answering = CountGuard::one(&this.answering);
                this.serve(asker)
            }
        });
    }
}
