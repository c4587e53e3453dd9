//! A line for people, on the server's standard error.

use core::mem::MaybeUninit;

use libc::iovec;

use crate::{
    descriptors::{Kind, kind_of},
    sys::sys,
};

/// Writes a message to the standard error, in one piece. A standard error that is a client's connection, as in
/// servers under inetd, gets no message.
pub(crate) fn say(parts: &[&[u8]]) {
    let kind = kind_of(libc::STDERR_FILENO);
    if !matches!(kind, Kind::Other | Kind::File | Kind::Input) {
        return;
    }
    const MESSAGE_PARTS_MAX: usize = 8;
    let mut pieces = [const { MaybeUninit::<iovec>::uninit() }; MESSAGE_PARTS_MAX + 2];
    let mut count = 0;
    let all = [&b"outlive: "[..]]
        .into_iter()
        .chain(parts.iter().take(MESSAGE_PARTS_MAX).copied())
        .chain([&b"\n"[..]]);
    for (piece, part) in pieces.iter_mut().zip(all) {
        piece.write(iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        count += 1;
    }
    // SAFETY: `count` pieces, all of which live.
    unsafe { sys!(SYS_writev, libc::STDERR_FILENO, pieces.as_ptr(), count) };
}

/// A number, as text.
pub(crate) struct Decimal {
    digits: [u8; 20],
    from: usize,
}

impl Decimal {
    pub(crate) fn new(mut number: u64) -> Self {
        let mut digits = [b'0'; 20];
        let mut from = digits.len();
        loop {
            from -= 1;
            digits[from] = b'0' + (number % 10).to_le_bytes()[0];
            number /= 10;
            if number == 0 {
                return Self { digits, from };
            }
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.digits[self.from..]
    }
}
