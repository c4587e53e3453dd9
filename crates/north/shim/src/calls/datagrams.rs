//! Datagrams from any sender: the record has content and sender.

use libc::{c_int, c_void, iovec, msghdr, socklen_t, ssize_t};
use north_abi::{Call, Header};

use super::reading::{gather, scatter, total};
use crate::{
    errno::answer,
    signals::blocking,
    sys::{Outcome, bytes, bytes_mut},
    wrap::{Wrap, restarting},
};

/// Bytes of a record before the content: length of the sender's address, length of the control data, and flags.
const FRONT: usize = 12;

/// Fields of a message that the kernel fills in besides the bytes.
struct Filled {
    name: u32,
    control: u32,
    flags: u32,
}

impl Filled {
    fn of(message: &msghdr) -> Self {
        Self {
            name: message.msg_namelen,
            control: message.msg_controllen as u32,
            flags: message.msg_flags.cast_unsigned(),
        }
    }

    fn to_bytes(&self) -> [u8; FRONT] {
        let mut front = [0; FRONT];
        for (place, number) in
            front
                .as_chunks_mut()
                .0
                .iter_mut()
                .zip([self.name, self.control, self.flags])
        {
            *place = u32::to_le_bytes(number);
        }
        front
    }

    fn from_bytes(front: &[u8; FRONT]) -> Self {
        let numbers = front.as_chunks().0;
        let [name, control, flags] = [0, 1, 2].map(|index| u32::from_le_bytes(numbers[index]));
        Self {
            name,
            control,
            flags,
        }
    }

    /// Present bytes of the address and of the control data.
    fn lengths(&self, capacity: [usize; 2]) -> [usize; 2] {
        [
            (self.name as usize).min(capacity[0]),
            (self.control as usize).min(capacity[1]),
        ]
    }
}

impl Wrap {
    fn receive_datagram(&mut self, fd: c_int, message: &mut msghdr, flags: c_int) -> Outcome {
        // SAFETY: the program vouches for the message.
        let pieces = unsafe { core::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) };
        let capacity = [message.msg_namelen as usize, message.msg_controllen];
        let replayed = self.replayed(Call::Input, fd, |record| {
            if let Some((front, rest)) = record.payload.split_first_chunk() {
                // SAFETY: as above.
                unsafe { fill(message, &Filled::from_bytes(front), rest, capacity, pieces) };
            }
            record.outcome
        });
        if let Some(outcome) = replayed {
            return outcome;
        }
        self.before_reading(fd, flags);
        let at = (&raw mut *message).addr();
        // SAFETY: as above.
        let outcome = unsafe {
            blocking(
                libc::SYS_recvmsg,
                [fd as usize, at, flags as usize, 0, 0, 0],
            )
        };
        self.record_datagram(fd, message, capacity, pieces, outcome);
        outcome
    }

    fn record_datagram(
        &mut self,
        fd: c_int,
        message: &msghdr,
        capacity: [usize; 2],
        pieces: &[iovec],
        outcome: Outcome,
    ) {
        let (call, fd) = (Call::Input, fd.cast_unsigned());
        let Ok(length) = usize::try_from(outcome) else {
            return self.append(
                Header {
                    call,
                    fd,
                    outcome,
                    length: 0,
                },
                |_| (),
            );
        };
        let filled = Filled::of(message);
        let [name, control] = filled.lengths(capacity);
        // The truncated part of a datagram is lost.
        let length = FRONT + name + control + length.min(total(pieces));
        self.append(
            Header {
                call,
                fd,
                outcome,
                length,
            },
            |payload| {
                let (front, rest) = payload.split_at_mut(FRONT);
                front.copy_from_slice(&filled.to_bytes());
                let (to_name, rest) = rest.split_at_mut(name);
                let (to_control, rest) = rest.split_at_mut(control);
                // SAFETY: the kernel has just filled in this part of the program's memory.
                unsafe {
                    to_name.copy_from_slice(bytes(message.msg_name, name));
                    to_control.copy_from_slice(bytes(message.msg_control, control));
                    gather(pieces, rest);
                }
            },
        );
    }
}

/// Fills a message in as the kernel did.
///
/// # Safety
/// The program vouches for the message, with this capacity.
unsafe fn fill(
    message: &mut msghdr,
    filled: &Filled,
    from: &[u8],
    capacity: [usize; 2],
    pieces: &[iovec],
) {
    let [name, control] = filled.lengths(capacity);
    let Some((from_name, rest)) = from.split_at_checked(name) else {
        return;
    };
    let Some((from_control, rest)) = rest.split_at_checked(control) else {
        return;
    };
    // SAFETY: by the caller.
    unsafe {
        bytes_mut(message.msg_name, name).copy_from_slice(from_name);
        bytes_mut(message.msg_control, control).copy_from_slice(from_control);
        scatter(pieces, rest);
    }
    message.msg_namelen = filled.name;
    message.msg_controllen = filled.control as usize;
    message.msg_flags = filled.flags.cast_signed();
}

/// Receives a datagram as a message. `perform` is the call of a process without recording.
pub(super) fn receive_message(
    fd: c_int,
    message: &mut msghdr,
    flags: c_int,
    perform: impl FnOnce() -> Outcome,
) -> ssize_t {
    let outcome = restarting(|wrap| wrap.receive_datagram(fd, message, flags));
    answer(outcome.unwrap_or_else(perform))
}

/// As [`receive_message`], into pieces, and perhaps with the sender's address.
pub(super) fn receive(
    fd: c_int,
    pieces: &[iovec],
    flags: c_int,
    sender: (*mut c_void, *mut socklen_t),
    perform: impl FnOnce() -> Outcome,
) -> ssize_t {
    // SAFETY: as the program has called us.
    let size = unsafe { sender.1.as_mut() }.filter(|_| !sender.0.is_null());
    // SAFETY: all zeros is an empty message.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut();
    message.msg_iovlen = pieces.len();
    if let Some(size) = &size {
        message.msg_name = sender.0;
        message.msg_namelen = **size;
    }
    let Some(outcome) = restarting(|wrap| wrap.receive_datagram(fd, &mut message, flags)) else {
        return answer(perform());
    };
    if let (Some(size), true) = (size, outcome >= 0) {
        *size = message.msg_namelen;
    }
    answer(outcome)
}
