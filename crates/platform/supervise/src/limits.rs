//! The limit of open files. This process takes the highest permitted limit, because a descriptor is open for each
//! connection that is made anew, and for each concealed file. Children get the original limit.

use std::sync::OnceLock;

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

static ORIGINAL_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit to the highest permitted value.
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

/// Restores the original limit, for a child. Makes system calls only.
///
/// # Errors
/// The kernel refuses.
pub fn lower() -> Result<(), Errno> {
    ORIGINAL_LIMIT
        .get()
        .map_or(Ok(()), |before| setrlimit(Resource::Nofile, *before))
}
