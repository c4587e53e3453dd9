//! Signals that tests send.

use std::sync::{Arc, Once, atomic::AtomicBool};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT},
    flag::register_conditional_shutdown,
};

/// Handles these signals. A script in the background may start the tests with the signals ignored, and all child
/// processes would inherit that.
///
/// # Panics
/// If the kernel refuses a handler.
pub fn handle_signals() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        for signal in [SIGHUP, SIGINT, SIGQUIT] {
            let at_once = Arc::new(AtomicBool::new(true));
            register_conditional_shutdown(signal, 128 + signal, at_once).expect("a handler");
        }
    });
}
