//! Numbers of bytes, for people.

use std::fmt;

/// Number of bytes, for people.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        // In tenths, rounded down: no more is claimed than there is.
        let mut tenths = u128::from(self.0) * 10 / 1024;
        let mut units = UNITS.iter().peekable();
        while let Some(unit) = units.next() {
            if tenths < 10_240 || units.peek().is_none() {
                return write!(f, "{}.{} {unit}", tenths / 10, tenths % 10);
            }
            tenths /= 1024;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_fitting_units() {
        let says = |bytes| Size(bytes).to_string();
        assert_eq!(says(0), "0 B");
        assert_eq!(says(1023), "1023 B");
        assert_eq!(says(1024), "1.0 KiB");
        assert_eq!(says(15_972), "15.5 KiB");
        assert_eq!(says((1 << 20) - 1), "1023.9 KiB");
        assert_eq!(says(1 << 30), "1.0 GiB");
        assert_eq!(says(1 << 50), "1024.0 TiB");
    }
}
