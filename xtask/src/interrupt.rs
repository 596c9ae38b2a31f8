//! Ctrl-c and SIGTERM: noted here, so that whoever runs the current command ends it, and every guard on the way out
//! ends its server and removes its folder.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT and SIGTERM are only noted.
pub(crate) fn listen() {
    let note: extern "C" fn(i32) = note;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler does nothing but store to an atomic.
        unsafe { libc::signal(signal, note as libc::sighandler_t) };
    }
}

/// Whether one has come.
pub(crate) fn came() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

extern "C" fn note(_signal: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}
