//! Looks through everything a test run printed for texts that must never be printed.
//!
//! Every server started for tests has one marked password, and tests put one marked text into payloads. Wherever either
//! turns up, a real secret or a real payload would have, too.

use anyhow::{Context, Result, bail};
use salvage_services::{MARKER_PASSWORD, MARKER_PAYLOAD};
use std::fs;
use std::path::{Path, PathBuf};

/// Errors: a file holds a marker (each such file is named with its line), or could not be read.
pub(crate) fn none_in(folders: &[&Path]) -> Result<()> {
    let mut found = Vec::new();
    for folder in folders {
        for file in files_below(folder)? {
            let bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            for (what, marker) in [("a password", MARKER_PASSWORD), ("a payload", MARKER_PAYLOAD)] {
                if let Some(line) = line_of(&bytes, marker) {
                    found.push(format!("{what} was printed: {}, line {line}", file.display()));
                }
            }
        }
    }
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(())
}

/// Number of the first line that holds the marker, from 1.
fn line_of(bytes: &[u8], marker: &str) -> Option<usize> {
    let at = bytes.windows(marker.len()).position(|window| window == marker.as_bytes())?;
    Some(1 + bytes[..at].iter().filter(|&&byte| byte == b'\n').count())
}

/// All files below a folder; none if it is not there.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
            let path = entry.with_context(|| format!("listing {}", folder.display()))?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::{MARKER_PAYLOAD, line_of};

    #[test]
    fn marker_is_found_with_its_line() {
        let text = format!("one\ntwo {MARKER_PAYLOAD}\n");
        assert_eq!(line_of(text.as_bytes(), MARKER_PAYLOAD), Some(2));
        assert_eq!(line_of(b"nothing here", MARKER_PAYLOAD), None);
    }
}
