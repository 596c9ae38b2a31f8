//! Free loopback ports.

use anyhow::{Context, Result, bail};
use std::net::TcpListener;

/// How often a start is tried with another port before giving up.
const TRIES_MAX: u32 = 8;

/// What came of one try to start a server on a port.
pub(crate) enum Try<T> {
    Started(T),
    /// Somebody took the port between our asking for it and the server's binding it.
    PortTaken,
}

/// Starts something on a free port. Another process may take the port before the server binds it, so `start` says
/// whether that happened, and is then called with another one.
pub(crate) fn on_free_port<T>(mut start: impl FnMut(u16) -> Result<Try<T>>) -> Result<T> {
    for _ in 0..TRIES_MAX {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("asking for a free loopback port")?;
        let port = listener.local_addr().context("reading the free port's number")?.port();
        drop(listener);
        if let Try::Started(server) = start(port)? {
            return Ok(server);
        }
    }
    bail!("{TRIES_MAX} free ports in a row were taken by others before the server could bind them")
}
