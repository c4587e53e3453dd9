//! Notices saves.

use std::{
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

/// Time without a change after which a save is complete. Editors write in several steps, and file times have a
/// resolution of milliseconds.
const SETTLE_TIME: Duration = Duration::from_millis(20);

fn is_change(event: &Event) -> bool {
    let is_named = event.paths.is_empty() || event.paths.iter().any(|path| !is_unnamed(path));
    is_named && !matches!(event.kind, EventKind::Access(_))
}

/// Hidden files have no name; the kernel reports such a file as `#` and a number.
fn is_unnamed(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.as_encoded_bytes());
    let number = name.and_then(|name| name.strip_prefix(b"#"));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// Watches a tree.
#[derive(Debug)]
pub struct Watch {
    changes: Receiver<()>,
    _watcher: RecommendedWatcher,
}

impl Watch {
    /// Watches this tree from now on.
    ///
    /// # Errors
    /// The tree has more directories than the system allows (`fs.inotify.max_user_watches`).
    pub fn over(tree: &Path) -> notify::Result<Self> {
        let (changed, changes) = channel();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, is_change) {
                // The receiver has gone.
                let _ = changed.send(());
            }
        })?;
        watcher.watch(tree, RecursiveMode::Recursive)?;
        Ok(Self {
            changes,
            _watcher: watcher,
        })
    }

    /// Waits for a save, at most for this time. Returns whether there was one.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> bool {
        if self.changes.recv_timeout(at_most).is_err() {
            return false;
        }
        // Some files change all the time.
        let until = Instant::now() + at_most;
        while Instant::now() < until
            && self.changes.recv_timeout(SETTLE_TIME) != Err(RecvTimeoutError::Timeout)
        {}
        true
    }
}
