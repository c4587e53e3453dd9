//! Datagrams for the logger that leave together: the kernel gets all datagrams at once, and segments as late as
//! possible (`UDP_SEGMENT`, udp(7)). Without this feature each datagram leaves by a call of its own.

use core::{cell::UnsafeCell, mem, ptr};

use libc::{
    CMSG_LEN, CMSG_SPACE, EIO, EMSGSIZE, ENOPROTOOPT, EOPNOTSUPP, SOL_UDP, UDP_SEGMENT, c_void,
    cmsghdr, iovec, msghdr,
};
use north_abi::layout::{FILE_FD, LOGGER_SOCKET_FD, stream_offset};
use protocol::link::{DETERMINANTS_OVERHEAD, Determinants, LinkKey, StreamPosition};

use crate::sys::{Outcome, sys};

/// Longest datagram.
const DATAGRAM_MAX_BYTES: usize = 1472;
/// Datagrams of one batch: the kernel segments more (`UDP_MAX_SEGMENTS`), but not more bytes.
const BATCH_DATAGRAMS_MAX: usize = 44;

/// Memory for a batch.
pub(crate) struct Datagrams {
    budget: [u8; BATCH_DATAGRAMS_MAX * DATAGRAM_MAX_BYTES],
    /// The device cannot segment a batch.
    is_each_alone: bool,
}

struct Static(UnsafeCell<Datagrams>);
// SAFETY: `datagrams` gives the value to one caller.
unsafe impl Sync for Static {}
static DATAGRAMS: Static = Static(UnsafeCell::new(Datagrams {
    budget: [0; BATCH_DATAGRAMS_MAX * DATAGRAM_MAX_BYTES],
    is_each_alone: false,
}));

/// The room.
///
/// # Safety
/// Once.
pub(crate) unsafe fn datagrams() -> &'static mut Datagrams {
    // SAFETY: by the caller.
    unsafe { &mut *DATAGRAMS.0.get() }
}

impl Datagrams {
    /// The datagrams take another route from here on.
    pub(crate) fn reset_route(&mut self) {
        self.is_each_alone = false;
    }

    /// Most bytes of a stream in one batch of datagrams, each of at most `longest` bytes.
    pub(crate) fn capacity(longest: usize) -> u64 {
        (BATCH_DATAGRAMS_MAX * (Self::each(longest) - DETERMINANTS_OVERHEAD)) as u64
    }

    fn each(longest: usize) -> usize {
        longest.clamp(DETERMINANTS_OVERHEAD + 1, DATAGRAM_MAX_BYTES)
    }

    /// Reads `length` bytes of a stream from the position `at`, at most [`Self::capacity`]. `None`: the bytes cannot
    /// be read.
    pub(crate) fn read(
        &mut self,
        at: &StreamPosition,
        length: u64,
        longest: usize,
    ) -> Option<Read<'_>> {
        let each = Self::each(longest);
        let length = length as usize;
        let count = length.div_ceil(each - DETERMINANTS_OVERHEAD);
        let all = self
            .budget
            .get_mut(..length + count * DETERMINANTS_OVERHEAD)?;
        let mut pieces = [const { nothing() }; BATCH_DATAGRAMS_MAX];
        for (piece, datagram) in pieces.iter_mut().zip(all.chunks_mut(each)) {
            let room = Determinants::room(datagram);
            (piece.iov_base, piece.iov_len) = (room.as_mut_ptr().cast(), room.len());
        }
        let offset = stream_offset(at.process) + at.offset;
        // SAFETY: into our own room, as much as is in the pieces.
        let read = unsafe { sys!(SYS_preadv, FILE_FD, pieces.as_ptr(), count, offset, 0) };
        (read == length as Outcome).then_some(Read {
            all,
            each,
            is_each_alone: &mut self.is_each_alone,
        })
    }
}

const fn nothing() -> iovec {
    iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    }
}

/// Bytes of a stream in datagrams, not sealed yet.
pub(crate) struct Read<'a> {
    all: &'a mut [u8],
    each: usize,
    is_each_alone: &'a mut bool,
}

impl Read<'_> {
    /// Seals and sends the datagrams. A datagram that the kernel refuses counts as lost.
    pub(crate) fn send(self, mut at: StreamPosition, key: &LinkKey) {
        for datagram in self.all.chunks_mut(self.each) {
            Determinants::seal(&at, key, datagram);
            at.offset += (datagram.len() - DETERMINANTS_OVERHEAD) as u64;
        }
        let is_one = self.all.len() <= self.each;
        if !is_one && !*self.is_each_alone {
            *self.is_each_alone = !send_together(self.all, self.each);
            if !*self.is_each_alone {
                return;
            }
        }
        self.all.chunks(self.each).for_each(send);
    }
}

pub(crate) fn send(datagram: &[u8]) {
    let (at, size) = (datagram.as_ptr(), datagram.len());
    // SAFETY: the datagram lives.
    unsafe { sys!(SYS_sendto, LOGGER_SOCKET_FD, at, size, 0, 0, 0) };
}

/// `UDP_SEGMENT` as control data of a message.
#[repr(C)]
struct Cut {
    header: cmsghdr,
    each: u16,
}

// SAFETY: no memory is involved.
const _: () = assert!(unsafe { CMSG_SPACE(2) } as usize == size_of::<Cut>());

/// `false`: the kernel does not cut, or not for the device.
fn send_together(all: &[u8], each: usize) -> bool {
    let cut = Cut {
        header: cmsghdr {
            // SAFETY: no memory is involved.
            cmsg_len: unsafe { CMSG_LEN(2) } as usize,
            cmsg_level: SOL_UDP,
            cmsg_type: UDP_SEGMENT,
        },
        each: each as u16,
    };
    let mut piece = iovec {
        iov_base: all.as_ptr().cast::<c_void>().cast_mut(),
        iov_len: all.len(),
    };
    // SAFETY: all zeros is such a structure.
    let mut message: msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    message.msg_control = (&raw const cut).cast::<c_void>().cast_mut();
    message.msg_controllen = size_of::<Cut>();
    // SAFETY: all referenced memory lives, and is only read.
    let send = || unsafe { sys!(SYS_sendmsg, LOGGER_SOCKET_FD, &raw const message, 0) };
    let unable = [EIO, libc::EINVAL, EMSGSIZE, ENOPROTOOPT, EOPNOTSUPP];
    let outcome = match send() {
        told @ ..0 if !unable.map(|code| -Outcome::from(code)).contains(&told) => send(), // an earlier error
        outcome => outcome,
    };
    !unable.map(|code| -Outcome::from(code)).contains(&outcome)
}
