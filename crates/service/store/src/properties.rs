//! Properties of every byte string. The property tests of this crate and the fuzz target run the same functions; each
//! function panics if the property does not hold.

use crate::{meta, resp};

/// Any bytes as replies of stores: a reply is within the bytes, depends on no byte behind it, and no shorter beginning
/// is a reply.
///
/// # Panics
///
/// If the property does not hold.
pub fn replies(bytes: &[u8]) {
    each(bytes, resp::frame);
    each(bytes, meta::Reply::decode);
}

fn each<R: PartialEq + std::fmt::Debug, E: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<Option<(R, usize)>, E>,
) {
    let mut rest = bytes;
    while let Ok(Some((reply, len))) = decode(rest) {
        assert!((1..=rest.len()).contains(&len));
        assert_eq!(decode(&rest[..len]), Ok(Some((reply, len))));
        assert_eq!(decode(&rest[..len - 1]), Ok(None));
        rest = &rest[len..];
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn seeds_have_the_properties() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds/store_replies");
        let mut count = 0;
        for seed in std::fs::read_dir(seeds).expect("seeds") {
            super::replies(&std::fs::read(seed.expect("a file").path()).expect("a seed"));
            count += 1;
        }
        assert!(count > 0);
    }
}
