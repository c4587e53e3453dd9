//! The number by which a logger on another machine knows the service again: drawn when the service
//! is first started, kept in its directory, gone when it is stopped.

use std::{fs, io, path::Path};

use rand::Rng;

use crate::error::{ServeError, SystemContext};

/// The file in a service's directory.
pub(crate) const FILE: &str = "instance";

/// The number of the service in this directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) number: u64,
    /// It was drawn just now: the service has no earlier life that anything here knows of.
    pub(crate) fresh: bool,
}

/// The number of the service in this directory.
pub(crate) fn of(directory: &Path) -> Result<Instance, ServeError> {
    let path = directory.join(FILE);
    let doing = "keep the number of the service";
    match fs::read_to_string(&path) {
        Ok(text) => {
            let number = u64::from_str_radix(text.trim(), 16)
                .map_err(io::Error::other)
                .doing("read the number of the service")?;
            let fresh = false;
            Ok(Instance { number, fresh })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let number: u64 = rand::rng().random();
            fs::write(&path, format!("{number:016x}\n")).doing(doing)?;
            let fresh = true;
            Ok(Instance { number, fresh })
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
        let again = Instance {
            fresh: false,
            ..number
        };
        assert!(number.fresh);
        assert_eq!(of(a.path()).unwrap(), again);
        assert_ne!(of(b.path()).unwrap().number, number.number);
        fs::write(a.path().join(FILE), "rubbish").unwrap();
        assert!(of(a.path()).is_err());
    }
}
