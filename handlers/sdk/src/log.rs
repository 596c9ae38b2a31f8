//! Lines in the host's log, under the handler's name.
//!
//! In a component they go to the host, which drops and counts what exceeds the handler's log limit. In a native build
//! they go nowhere.

/// Weight of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// For the handler's authors.
    Debug,
    /// Worth knowing.
    Info,
    /// Somebody should look at it some day.
    Warn,
    /// Somebody should look at it now.
    Error,
}

/// Writes one line. Never a payload or a secret.
pub fn log(level: Level, message: &str) {
    #[cfg(target_family = "wasm")]
    crate::wasm::log(level, message);
    #[cfg(not(target_family = "wasm"))]
    let _ = (level, message);
}

/// Writes one line at [`Level::Debug`].
pub fn debug(message: &str) {
    log(Level::Debug, message);
}

/// Writes one line at [`Level::Info`].
pub fn info(message: &str) {
    log(Level::Info, message);
}

/// Writes one line at [`Level::Warn`].
pub fn warn(message: &str) {
    log(Level::Warn, message);
}

/// Writes one line at [`Level::Error`].
pub fn error(message: &str) {
    log(Level::Error, message);
}
