//! Files that the server has read.
//!
//! A replay reads the files again. `serve` holds descriptors of the files, too. A file that was replaced or removed
//! under the old name is unchanged behind the descriptor, and the next incarnation gets this descriptor on request. On
//! another host, and after the end of this process, the old file is lost.

use std::{
    collections::HashMap,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
};

use north_host::Message;
use rustix::{
    fs::{FileType, Mode, OFlags, fstat, open},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{Resource, getrlimit},
};

/// Limits of held files: this many, or this share of the descriptors of the process, if that is less.
const HELD_FILES_MAX: usize = 4096;
const DESCRIPTOR_SHARE: u64 = 4;

#[derive(Debug, Default)]
pub(crate) struct Files(HashMap<u64, OwnedFd>);

impl Files {
    /// A process has opened a file, or asks for a file. All other messages are returned.
    pub(crate) fn on_message(
        &mut self,
        message: Message,
        descriptor: Option<OwnedFd>,
    ) -> Option<(Message, Option<OwnedFd>)> {
        match (message, descriptor) {
            (Message::Reads { file, .. }, Some(descriptor)) => {
                if self.0.len() < most()
                    && let Ok(opened) = opened_anew(&descriptor)
                {
                    self.0.entry(file).or_insert(opened);
                }
                None
            }
            (Message::Wants { file, .. }, Some(answer)) => {
                self.give(file, &answer);
                None
            }
            other => Some(other),
        }
    }

    /// No replay will read the files again.
    pub(super) fn let_go(&mut self) {
        self.0.clear();
    }

    /// Without a held descriptor, the closed answer socket is the answer.
    fn give(&self, file: u64, answer: &OwnedFd) {
        let held = self.0.get(&file).map(opened_anew);
        let Some(Ok(given)) = held else {
            return;
        };
        give(given.as_fd(), answer);
    }
}

/// Sends the descriptor to the requesting process, which may have died.
pub(super) fn give(descriptor: BorrowedFd<'_>, answer: &OwnedFd) {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&descriptors));
    let _ = sendmsg(
        answer,
        &[IoSlice::new(&[0])],
        &mut beside,
        SendFlags::NOSIGNAL,
    );
}

/// The same file, with a separate position and separate locks (`flock`). Opened in `serve`: a process that closes any
/// descriptor of a file loses all locks of the file (`fcntl`).
fn opened_anew(file: &OwnedFd) -> io::Result<OwnedFd> {
    if !FileType::from_raw_mode(fstat(file)?.st_mode).is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn most() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / DESCRIPTOR_SHARE)
        .unwrap_or(HELD_FILES_MAX)
        .min(HELD_FILES_MAX)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read as _, os::unix::net::UnixStream};

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;

    fn wanted(files: &mut Files, file: u64) -> Option<File> {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let wants = Message::Wants { process: 0, file };
        assert!(files.on_message(wants, Some(theirs.into())).is_none());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [0; 1];
        let mut pieces = [std::io::IoSliceMut::new(into)];
        recvmsg(&ours, &mut pieces, &mut beside, RecvFlags::empty()).expect("an answer, or an end");
        beside.drain().find_map(|one| match one {
            RecvAncillaryMessage::ScmRights(mut all) => all.next().map(File::from),
            _ => None,
        })
    }

    #[test]
    fn replaced_file_stays_readable() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("read");
        std::fs::write(&path, "before").expect("a file");
        let mut files = Files::default();
        let reads = Message::Reads {
            process: 0,
            file: 7,
        };
        let opened = File::open(&path).expect("it is there");
        assert!(files.on_message(reads, Some(opened.into())).is_none());
        std::fs::remove_file(&path).expect("it was there");
        let mut text = String::new();
        let mut held = wanted(&mut files, 7).expect("it is held");
        held.read_to_string(&mut text).expect("text");
        assert_eq!(text, "before");
        assert!(wanted(&mut files, 8).is_none());
        files.let_go();
        assert!(wanted(&mut files, 7).is_none());
        let other = Message::Paused { process: 0 };
        assert!(files.on_message(other, None).is_some());
    }
}
