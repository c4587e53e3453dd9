//! Who asks is answered.

use std::{
    fs::File,
    io,
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, PoisonError},
};

use conceal::members::Members;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Engine, peer};
use crate::{
    job::Job,
    link::{self, Gain, Reply, Request},
    listening::{Counted, listen_to},
    repositories::untold,
};

impl Engine {
    /// Answers who asks.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn serve(&self, mut asker: UnixStream) -> io::Result<()> {
        let (streams, request) = link::heed(&mut asker)?;
        let streams = streams.map(File::from);
        let reply = match request {
            Request::Status => Reply::Status(self.standing()),
            Request::Stop => {
                let mut stoppers = self.stoppers.lock().unwrap_or_else(PoisonError::into_inner);
                stoppers.push(asker);
                self.stop();
                return Ok(());
            }
            // What it would be told is not there for long.
            Request::Make(_) if self.is_over() => Reply::Plainly(Vec::new(), None),
            Request::Make(command) => {
                self.asked().add(command.clone());
                let why = self.unexpected(&command);
                match self.run_for_user(&command, true, streams, &mut asker) {
                    Some((status, gain)) => Reply::Done(status, gain),
                    None => {
                        let process = Pid::from_raw(peer(&asker)?.cast_signed());
                        let process = process.map(|it| pidfd_open(it, PidfdFlags::empty()));
                        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
                        own.extend(process.transpose()?);
                        Reply::Plainly(self.preload.environment(&command), why)
                    }
                }
            }
            Request::Run(command) => {
                let process = peer(&asker)?;
                let asker_of = self.asker_of(process);
                let done = match asker_of {
                    Some(parent) if parent.progress().is_mandated => None,
                    Some(parent) => {
                        let [_, out, err] = streams;
                        let command = untold(command, &parent.command);
                        self.run_for(&parent, &command, [out, err], &mut asker)
                            .map(|status| (status, Gain::default()))
                    }
                    None => self.run_for_user(&command, false, streams, &mut asker),
                };
                done.map_or_else(
                    || Reply::Plainly(Vec::new(), None),
                    |(status, gain)| Reply::Done(status, gain),
                )
            }
        };
        link::say(&mut asker, &reply)
    }

    /// The job that asks. One that begins just now is waited for; that is not asked of makes that the user runs.
    fn asker_of(&self, process: u32) -> Option<Arc<Job>> {
        if Members::with(process).ok() == self.outsiders {
            return None;
        }
        self.of_process(process).or_else(|| {
            drop(self.beginning.write());
            self.of_process(process)
        })
    }

    /// Answers all who ask, for ever.
    pub fn listen(self: &Arc<Self>, listener: &UnixListener) {
        listen_to(listener, || {
            let this = Arc::clone(self);
            move |asker| {
                let _answering = Counted::one(&this.answering);
                this.serve(asker)
            }
        });
    }
}
