//! Random numbers from all sources.

use core::ptr;

use libc::{c_int, c_uint, c_void, ssize_t};
use north_abi::{Call, Record};

use crate::{
    errno::{answer, answer_int},
    sys::{Outcome, bytes_mut, sys},
    wrap::{Wrap, with},
};

impl Wrap {
    fn random(&mut self, room: &mut [u8], flags: c_uint) -> Outcome {
        let replayed = self.replayed(Call::Random, 0, |record| {
            let length = room.len().min(record.payload.len());
            room[..length].copy_from_slice(&record.payload[..length]);
            record.outcome
        });
        replayed.unwrap_or_else(|| {
            // SAFETY: the memory is ours to fill.
            let outcome = unsafe { sys!(SYS_getrandom, room.as_mut_ptr(), room.len(), flags) };
            let length = usize::try_from(outcome).unwrap_or(0);
            self.record(&Record {
                call: Call::Random,
                fd: 0,
                outcome,
                payload: &room[..length],
            });
            outcome
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> ssize_t {
    // SAFETY: as the program has called us.
    let outcome = with(|wrap| wrap.random(unsafe { bytes_mut(buffer, length) }, flags));
    // SAFETY: as the program has called us.
    answer(outcome.unwrap_or_else(|| unsafe { sys!(SYS_getrandom, buffer, length, flags) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getentropy(buffer: *mut c_void, length: usize) -> c_int {
    if length > 256 {
        return answer_int(super::failed(libc::EIO));
    }
    // SAFETY: as the program has called us.
    let filled = unsafe { getrandom(buffer, length, 0) };
    answer_int(if filled.cast_unsigned() == length {
        0
    } else {
        super::failed(libc::EIO)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn arc4random_buf(buffer: *mut c_void, length: usize) {
    let mut done = 0;
    while done < length {
        // SAFETY: within the memory that the program has given us.
        let filled = unsafe { getrandom(buffer.byte_add(done), (length - done).min(256), 0) };
        done += usize::try_from(filled).unwrap_or(0);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn arc4random() -> u32 {
    let mut number = 0u32;
    // SAFETY: the number has four bytes.
    unsafe { arc4random_buf((&raw mut number).cast(), size_of::<u32>()) };
    number
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn arc4random_uniform(bound: u32) -> u32 {
    // The numbers that would favour the low ones are drawn again.
    let uneven = bound.wrapping_neg().checked_rem(bound).unwrap_or(0);
    loop {
        // SAFETY: no arguments.
        let number = unsafe { arc4random() };
        if number >= uneven {
            return number.checked_rem(bound).unwrap_or(0);
        }
    }
}

// OpenSSL's generator mixes into the kernel's random bytes other sources that no replay can repeat for certain: its
// own addresses, thread ids, in some versions the processor's time-stamp counter. A program with OpenSSL therefore
// gets the kernel's random numbers instead. All of libssl and libcrypto draws through these functions. The loader
// finds our definitions first, unless the library was linked with `-Bsymbolic` (Debian's is not).

#[unsafe(no_mangle)]
unsafe extern "C" fn RAND_bytes_ex(
    _context: *mut c_void,
    buffer: *mut u8,
    length: usize,
    _strength: c_uint,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { arc4random_buf(buffer.cast(), length) };
    1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn RAND_priv_bytes_ex(
    context: *mut c_void,
    buffer: *mut u8,
    length: usize,
    strength: c_uint,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { RAND_bytes_ex(context, buffer, length, strength) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn RAND_bytes(buffer: *mut u8, length: c_int) -> c_int {
    match usize::try_from(length) {
        // SAFETY: as the program has called us.
        Ok(length) => unsafe { RAND_bytes_ex(ptr::null_mut(), buffer, length, 0) },
        Err(_) => 0,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn RAND_priv_bytes(buffer: *mut u8, length: c_int) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { RAND_bytes(buffer, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn RAND_pseudo_bytes(buffer: *mut u8, length: c_int) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { RAND_bytes(buffer, length) }
}
