//! Files that helper threads close. The moment of a close decides the number of the next file. A closed number
//! therefore stays in use until the first thread comes by, records the close, and frees the number.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::{AT_FDCWD, O_CLOEXEC, O_RDONLY, c_int};
use north_abi::{
    Call, Record,
    layout::{FILE_FD, Failure},
};

use crate::{
    clock,
    descriptors::{DESCRIPTORS_MAX, Kind, kind_of},
    sys::{Outcome, sys},
    wrap::{Wrap, is_helper_thread},
};

/// Closed numbers that are not free yet, as a bit set.
static CLOSED: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
/// Size of the set.
static COUNT: AtomicU32 = AtomicU32::new(0);

fn place(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let index = usize::try_from(fd).ok()?;
    Some((CLOSED.get(index / 64)?, 1 << (index % 64)))
}

/// Closes a file of a helper thread. `None`: another thread, or another kind of descriptor.
pub(crate) fn close(fd: c_int) -> Option<Outcome> {
    let (word, bit) = place(fd).filter(|_| kind_of(fd) == Kind::File && is_helper_thread())?;
    if word.load(Ordering::Acquire) & bit != 0 {
        return Some(-Outcome::from(libc::EBADF));
    }
    let taken = take(fd);
    word.fetch_or(bit, Ordering::AcqRel);
    COUNT.fetch_add(1, Ordering::Release);
    Some(taken.min(0))
}

/// Puts a descriptor of ours in the place of the program's descriptor, which closes the file.
fn take(fd: c_int) -> Outcome {
    // SAFETY: no memory is involved.
    let taken = unsafe { sys!(SYS_dup3, FILE_FD, fd, O_CLOEXEC) };
    if taken >= 0 {
        return taken;
    }
    // The process has stopped for an image, and has let go of that.
    let (path, flags) = (c"/dev/null", O_CLOEXEC | O_RDONLY);
    // SAFETY: a string.
    let nothing = unsafe { sys!(SYS_openat, AT_FDCWD, path.as_ptr(), flags) };
    // SAFETY: no memory is involved.
    let taken = unsafe { sys!(SYS_dup3, nothing, fd, O_CLOEXEC) };
    // SAFETY: the descriptor is ours.
    unsafe { sys!(SYS_close, nothing) };
    taken
}

/// [`FILE_FD`] is closed: no other number is to keep that open.
pub(crate) fn let_go_of_file() {
    for fd in closed() {
        take(fd);
    }
}

/// All numbers of the set.
fn closed() -> impl Iterator<Item = c_int> {
    (0..).zip(&CLOSED).flat_map(|(index, word)| {
        let mut closed = word.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            let bit = closed.trailing_zeros().cast_signed();
            let found = (closed != 0).then_some(index * 64 + bit);
            closed &= closed.wrapping_sub(1);
            found
        })
    })
}

/// Whether a helper has closed the file, and the number is not free yet.
pub(crate) fn is_closed(fd: c_int) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

/// Whether a number waits to be freed.
#[inline]
pub(crate) fn is_pending() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// This process is a child: the helpers are the parent's.
pub(crate) fn forget() {
    for word in &CLOSED {
        word.store(0, Ordering::Relaxed);
    }
    COUNT.store(0, Ordering::Relaxed);
}

impl Wrap {
    /// Records the closes of helpers, and frees the numbers.
    #[cold]
    pub(crate) fn free_numbers(&mut self) {
        for fd in closed() {
            self.record(&Record {
                call: Call::Closed,
                fd: fd.cast_unsigned(),
                outcome: 0,
                payload: &[],
            });
            self.gives_free(fd);
        }
    }

    /// Frees the numbers of the record in a replay, after a wait for the helpers.
    pub(crate) fn replay_free_numbers(&mut self) {
        const CLOSE_ATTEMPTS_MAX: usize = 5000;
        while let Some(Ok((record, length))) = self.stream.peek()
            && record.call == Call::Closed
        {
            let fd = record.fd.cast_signed();
            self.advance(length);
            let mut left = CLOSE_ATTEMPTS_MAX;
            while !is_closed(fd) {
                left -= 1;
                if left == 0 {
                    self.fail(Failure::DescriptorTaken, Call::Closed, Some(Call::Closed));
                }
                clock::sleep(1_000_000);
            }
            self.gives_free(fd);
        }
    }

    fn gives_free(&mut self, fd: c_int) {
        let Some((word, bit)) = place(fd) else { return };
        self.unlocks(fd);
        self.descriptors.close(fd);
        // SAFETY: the number is ours by now.
        unsafe { sys!(SYS_close, fd) };
        word.fetch_and(!bit, Ordering::AcqRel);
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}
