//! The end of committed commands: input, output and signals until then.

use std::{
    fs::File,
    iter,
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{command::Status, job::Job, link};

/// Time between two looks whether the client is still there.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time that a command takes from some input to a request for more.
const INPUT_PAUSE: Duration = Duration::from_micros(100);
/// Time for which a sender waits for a reader.
const READER_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns when the command has ended and the output was read, or when the client has stopped waiting. Passes the
/// input of the user on, as much as the command asks for.
pub(crate) fn drain(job: &Arc<Job>, mut says: Option<File>, asker: &mut UnixStream) -> Status {
    let mut sent = None;
    let status = loop {
        if let Some((status, _)) = job.wait(POLL_INTERVAL).ended {
            break status;
        }
        if let Some(says) = &mut says {
            for at_work in iter::once(Arc::clone(job)).chain(job.all_parts()) {
                while at_work.pass_on(says) {
                    thread::sleep(INPUT_PAUSE);
                }
            }
        }
        sent = pass_on_signals(asker, job).or(sent);
    };
    match drain_output(job, sent, asker) {
        Some(signal) => Status::Signalled(signal.as_raw()),
        None => status,
    }
}

/// Waits until the client has read the output. Returns the signal that has ended the wait: in plain make, a command
/// that waits for a reader dies of the signal.
fn drain_output(job: &Arc<Job>, sent: Option<Signal>, asker: &mut UnixStream) -> Option<Signal> {
    let mut since = sent.map(|_| Instant::now());
    let mut ended_by = None;
    while !job.output.is_drained(POLL_INTERVAL) {
        if let Some(signal) = pass_on_signals(asker, job) {
            ended_by.get_or_insert(signal);
            since.get_or_insert_with(Instant::now);
        }
        if since.is_some_and(|since| since.elapsed() > READER_TIMEOUT) {
            job.output.abandon();
            return ended_by;
        }
    }
    ended_by
}

/// Waits for an end. Returns earlier at a signal of the client, or when the client has gone.
pub(crate) fn until_ended(
    asker: &mut UnixStream,
    mut has_ended: impl FnMut() -> bool,
) -> Option<Signal> {
    while !has_ended() {
        let sent = link::signals(asker).last().copied();
        if sent.is_some() {
            return sent;
        }
    }
    None
}

/// Passes signals of the client on to the job. Returns the last one.
pub(crate) fn pass_on_signals(asker: &mut UnixStream, job: &Arc<Job>) -> Option<Signal> {
    let signals = link::signals(asker);
    for signal in &signals {
        job.signal(*signal);
        job.all_parts().iter().for_each(|part| part.signal(*signal));
    }
    signals.last().copied()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn signal_ends_wait_for_foreign_job() {
        let (mut runner, mut asker) = UnixStream::pair().expect("a pair");
        let mut looks = 0;
        let ended = until_ended(&mut asker, || {
            looks += 1;
            looks == 5
        });
        assert_eq!((ended, looks), (None, 5));
        let int = u8::try_from(Signal::INT.as_raw()).expect("a small number");
        runner.write_all(&[int]).expect("somebody listens");
        assert_eq!(until_ended(&mut asker, || false), Some(Signal::INT));
        drop(runner);
        assert_eq!(until_ended(&mut asker, || false), Some(Signal::INT));
    }
}
