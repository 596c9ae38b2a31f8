//! Takes passwords out of a configuration's text before any of it may be shown in an error.
//!
//! Stars replace bytes one for one, so that every place in the redacted text is the same place in the file. The rules
//! look at lines, not only at parsed values, because the line with the URL may itself be the syntax error. They hide
//! too much rather than too little.

use std::ops::Range;

/// A name that contains one of these may be given a secret. `nodes` are URLs, too.
const SECRET_NAMES: [&str; 5] = ["url", "nodes", "passw", "secret", "token"];

/// The text with everything that may be a secret starred out: what follows `://`, what is assigned to a secret name,
/// lines with an `@`, and `also`. Same length, same lines.
pub(super) fn redacted(text: &str, also: &[Range<usize>]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if let Some(from) = secret_from(line) {
            star(&mut bytes[start + from..start + line.len()]);
        }
        start += line.len();
    }
    for span in also {
        star(&mut bytes[span.clone()]);
    }
    String::from_utf8(bytes).unwrap_or_else(|_| "*".repeat(text.len()))
}

/// Whether a value may hold a secret, and so is never quoted.
pub(super) fn is_secret(value: &str) -> bool {
    value.contains("://") || value.contains('@')
}

/// Whether what is assigned to this name may hold a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|secret| lower.contains(secret))
}

/// Where in the line the part begins that must not be shown.
fn secret_from(line: &str) -> Option<usize> {
    let after = |text: &str, pattern: &str| text.find(pattern).map(|at| at + pattern.len());
    if let Some(from) = after(line, "://") {
        return Some(from);
    }
    let assigned = after(line, "=");
    match assigned {
        Some(from) if is_secret_name(&line[..from]) => assigned,
        _ => line.contains('@').then(|| assigned.unwrap_or(0)),
    }
}

fn star(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| !matches!(byte, b'\n' | b'\r')) {
        *byte = b'*';
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let redacted = redacted(text, &[]);
        assert_eq!(redacted, expected);
        assert_eq!(redacted.len(), text.len());
    }

    #[test]
    fn what_may_be_a_password_is_starred_in_place() {
        check("url = \"pg://u:p@h\"\nx = 1\n", "url = \"pg://******\nx = 1\n");
        check("url = 'hunter2'\r\n", "url =**********\r\n");
        check("database.URL = hunter2", "database.URL =********");
        check("\"hünter2@db\"", "*************");
        check("nodes = ['u:p@h']", "nodes =**********");
        check("stale_after = \"300\" # url\n", "stale_after = \"300\" # url\n");
    }
}
