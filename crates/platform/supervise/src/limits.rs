//! The limit of open files: this process has as many as it may, for it opens one for each connection that it makes
//! anew, or each file that it conceals. Its children have the limit that it had.

use std::sync::OnceLock;

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

static ORIGINAL_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// As many as this process may ever have.
pub fn raise() {
    let before = ORIGINAL_LIMIT.get_or_init(|| getrlimit(Resource::Nofile));
    let most = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::debug!("the limit of open files stays: {error}");
    }
}

/// As it was before, for a child. Makes calls of the system only.
///
/// # Errors
/// The kernel refuses.
pub fn lower() -> Result<(), Errno> {
    ORIGINAL_LIMIT
        .get()
        .map_or(Ok(()), |before| setrlimit(Resource::Nofile, *before))
}
