//! Who asks is answered.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::unix::{
        ffi::OsStrExt as _,
        net::{UnixListener, UnixStream},
    },
    sync::{Arc, PoisonError},
};

use conceal::members::Members;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Engine, peer};
use crate::{
    command::Command,
    job::Job,
    link::{self, Gain, Plainly, Reply, Request},
    listening::{Counted, listen_to},
    repositories::untold,
};

/// What makes are called.
const MAKES: [&str; 2] = ["make", "gmake"];
/// What separates words for a shell.
const BETWEEN: &[u8] = b" \t\n;&|()<>{}'\"`=";

/// Whether a word of that is what a make is called.
fn names_make(words: &[u8]) -> bool {
    let mut words = words.split(|byte| BETWEEN.contains(byte));
    words.any(|word| {
        let name = word.rsplit(|byte| *byte == b'/').next();
        MAKES.iter().any(|make| name == Some(make.as_bytes()))
    })
}

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
            Request::Make(_) if self.is_over() => Reply::Plainly(Plainly::default()),
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
                        Reply::Plainly(Plainly {
                            also: self.preload.environment(&command),
                            why,
                            beside: None,
                        })
                    }
                }
            }
            Request::Run(command) => self.run_for_make(command, streams, &mut asker)?,
        };
        link::say(&mut asker, &reply)
    }

    /// A command of a make is done, or is to be done by who asks.
    fn run_for_make(
        &self,
        command: Command,
        streams: [File; 3],
        asker: &mut UnixStream,
    ) -> io::Result<Reply> {
        let done = match self.asker_of(peer(asker)?) {
            Some(parent) if parent.progress().is_mandated => {
                return Ok(Reply::Plainly(self.beside(&parent, &command)));
            }
            Some(parent) => {
                let [_, out, err] = streams;
                let told = untold(command.clone(), &parent.command);
                let done = self.run_for(&parent, &told, [out, err], asker);
                if done.is_none() && parent.progress().is_mandated {
                    return Ok(Reply::Plainly(self.beside(&parent, &command)));
                }
                done.map(|status| (status, Gain::default()))
            }
            None => self.run_for_user(&command, false, streams, asker),
        };
        Ok(done.map_or_else(
            || Reply::Plainly(Plainly::default()),
            |(status, gain)| Reply::Done(status, gain),
        ))
    }

    /// What a make begins after it was asked for is done as its user would: but for makes, whose commands are looked for among those that
    /// are done, and only of concealed ones.
    fn beside(&self, parent: &Job, command: &Command) -> Plainly {
        let is_leaving = !self.begins_makes(command);
        if is_leaving {
            parent.is_left_by_some();
        }
        Plainly {
            beside: is_leaving.then(std::process::id),
            ..Plainly::default()
        }
    }

    /// Whether it does, as far as its words tell, or what it has done before.
    fn begins_makes(&self, command: &Command) -> bool {
        let says_so = |word: &OsString| names_make(word.as_bytes());
        let did = |job: &Arc<Job>| job.command.arguments == command.arguments && job.has_parts();
        command.jobserver.is_some()
            || command.arguments.iter().any(says_so)
            || self.jobs().values().any(did)
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

#[cfg(test)]
mod tests {
    use super::names_make;

    #[test]
    fn makes_are_known_by_their_name() {
        for words in [
            "make",
            "/usr/bin/gmake -k",
            "cd sub&&make all",
            "(make)",
            "MAKE=x\tmake",
        ] {
            assert!(names_make(words.as_bytes()), "{words}");
        }
        for words in [
            "",
            "cmake -S .",
            "cc -c make/a.c",
            "rm CMakeFiles/make.o",
            "remake",
        ] {
            assert!(!names_make(words.as_bytes()), "{words}");
        }
    }
}
