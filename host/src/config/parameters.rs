//! What the parameters of a URL come to, whichever driver they were written for.
//!
//! An application's URL is pasted as it is. Each parameter is honoured; or changes nothing here, which is told once by its
//! name; or is refused by its name, because without it the connection would be another one than the application's. No
//! value is ever told: of a parameter that nobody here knows, it may be a password.

use super::section::Complaint;

/// How alike an unknown name and a known one must be (Jaro-Winkler, 0 to 1) to be taken for a slip. Greater than for
/// settings: what is no slip is left unheeded, so that the URL still works.
const SLIP_LIKENESS_MIN: f64 = 0.92;

/// Longest name of a parameter that is shown.
const NAME_CHARS_MAX: usize = 60;

/// Parameters that change nothing here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unheeded {
    known: Vec<String>,
    unknown: Vec<String>,
}

impl Unheeded {
    /// Notes one that is known to be of no concern here.
    pub(super) fn known(&mut self, name: &str) {
        push(&mut self.known, name);
    }

    /// Notes one that nobody knows, unless it is a slip of one that is honoured.
    ///
    /// # Errors
    /// If it is a slip, or no name at all.
    pub(super) fn unknown(&mut self, name: &str, honoured: &[&str]) -> Result<(), Complaint> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || !name.chars().all(is_plain) {
            // Most often the rest of a password.
            let complaint = Complaint::new("after `?` there is something that is no parameter");
            return Err(complaint.with_help("in user and password, percent-encode `@ : / ? # %`"));
        }
        let lower = name.to_ascii_lowercase();
        let is_like = |known: &&&str| strsim::jaro_winkler(&lower, known) >= SLIP_LIKENESS_MIN;
        if let Some(meant) = honoured.iter().find(is_like) {
            let complaint = Complaint::new(format!("parameter `{name}` is unknown"));
            return Err(complaint.with_help(format!("did you mean `{meant}`?")));
        }
        push(&mut self.unknown, name);
        Ok(())
    }

    /// Whether any of these is among those that are known.
    pub(super) fn has_any(&self, names: &[&str]) -> bool {
        self.known.iter().any(|name| names.contains(&name.to_ascii_lowercase().as_str()))
    }

    /// A sentence for the operator about the URL of `setting`; `None` if everything has an effect.
    pub(super) fn note(&self, setting: &str) -> Option<String> {
        let mut parts = Vec::new();
        if !self.known.is_empty() {
            parts.push(format!("no effect here: {}", self.known.join(", ")));
        }
        if !self.unknown.is_empty() {
            parts.push(format!("unknown and ignored: {}", self.unknown.join(", ")));
        }
        (!parts.is_empty()).then(|| format!("{setting}: parameters of the URL: {}", parts.join("; ")))
    }
}

fn push(names: &mut Vec<String>, name: &str) {
    if !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

/// The complaint about one parameter.
pub(super) fn refused(name: &str, why: &str, instead: &str) -> Complaint {
    Complaint::new(format!("parameter `{name}` {why}")).with_help(instead)
}

/// What a switch says; `None` if it is none.
pub(super) fn switch(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_told_and_a_strangers_parameter_is_not() {
        let honoured = &["sslmode", "schema"];
        let mut unheeded = Unheeded::default();
        assert_eq!(
            unheeded.unknown("sslmod", honoured).unwrap_err().help.unwrap(),
            "did you mean `sslmode`?"
        );
        assert!(unheeded.unknown("Schemas", honoured).is_err());
        assert!(unheeded.unknown("hunter2@db/x", honoured).unwrap_err().message.ends_with("no parameter"));
        assert!(unheeded.unknown("tenant", honoured).is_ok() && unheeded.unknown("tenant", honoured).is_ok());
        unheeded.known("pool_timeout");
        let note = unheeded.note("[database] url").unwrap();
        assert_eq!(
            note,
            "[database] url: parameters of the URL: no effect here: pool_timeout; unknown and ignored: tenant"
        );
    }
}
