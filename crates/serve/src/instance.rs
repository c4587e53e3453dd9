//! The number by which a logger on another machine knows the service again: drawn when the service
//! is first started, kept in its directory, gone when it is stopped.

use std::{fs, io, path::Path};

use rand::Rng;

use crate::error::{ServeError, SystemContext};

/// The file in a service's directory.
pub(crate) const FILE: &str = "instance";

/// The number of the service in this directory.
pub(crate) fn of(directory: &Path) -> Result<u64, ServeError> {
    let path = directory.join(FILE);
    let doing = "keep the number of the service";
    match fs::read_to_string(&path) {
        Ok(text) => u64::from_str_radix(text.trim(), 16)
            .map_err(io::Error::other)
            .doing("read the number of the service"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let number: u64 = rand::rng().random();
            fs::write(&path, format!("{number:016x}\n")).doing(doing)?;
            Ok(number)
        }
        Err(error) => Err(error).doing(doing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_one_number_and_each_has_another() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let number = of(a.path()).unwrap();
        assert_eq!(of(a.path()).unwrap(), number);
        assert_ne!(of(b.path()).unwrap(), number);
        fs::write(a.path().join(FILE), "rubbish").unwrap();
        assert!(of(a.path()).is_err());
    }
}
