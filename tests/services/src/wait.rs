//! Waiting for a server: for a condition, never for a time.

use anyhow::{Result, bail};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to rest between two looks. Short beside a server's start, long beside the cost of a look.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// As many lines of a log tell why a server did not come up.
const TAIL_LINES: usize = 20;

/// Looks again and again until `look` says true.
///
/// Errors: what `look` returned as error, at once; or `what` did not come true within `deadline`.
pub fn until(what: &str, deadline: Duration, mut look: impl FnMut() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !look()? {
        if started.elapsed() > deadline {
            bail!("gave up waiting after {} s: {what}", deadline.as_secs());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The last lines of a server's log, for the message that says why it did not come up. Empty if there is none.
pub(crate) fn tail(file: &Path) -> String {
    let text =
        std::fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
