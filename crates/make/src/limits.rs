//! How many files may be open: each that was made and not shown is, here; the commands have the limit that they had.

use std::sync::OnceLock;

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// As many as this process may ever have.
pub fn raise() {
    let before = BEFORE.get_or_init(|| getrlimit(Resource::Nofile));
    let most = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::debug!("the limit of open files stays: {error}");
    }
}

/// As it was before, for a child. Makes calls of the system only.
pub(crate) fn lower() -> Result<(), Errno> {
    BEFORE
        .get()
        .map_or(Ok(()), |before| setrlimit(Resource::Nofile, *before))
}
