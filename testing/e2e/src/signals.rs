//! Signals that tests send.

use std::sync::{Arc, Once, atomic::AtomicBool};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT},
    flag::register_conditional_shutdown,
};

/// Who runs tests in the background of a script may have them ignore these signals, and so would all that they begin.
///
/// # Panics
/// If the kernel refuses it.
pub fn handle_signals() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        for signal in [SIGHUP, SIGINT, SIGQUIT] {
            let at_once = Arc::new(AtomicBool::new(true));
            register_conditional_shutdown(signal, 128 + signal, at_once).expect("a handler");
        }
    });
}
