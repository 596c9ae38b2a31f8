//! The orphan to judge.

use crate::{Error, Row, one_line};

/// One orphaned job: its row says QUEUED or PROCESSING, and no queue of its source holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The domain's name.
    pub domain: String,
    /// The source's name.
    pub source: String,
    /// The row's id as text.
    pub id: String,
    /// The job type as the row has it.
    pub job_type: String,
    /// The row's status.
    pub status: String,
    /// RFC 3339, UTC, microseconds.
    pub updated_at: String,
    /// The mapped and extra columns of the row.
    pub columns: Row,
    /// How often this job was recovered within the operator's window.
    pub recoveries: u32,
    /// What the job left behind in its queues.
    pub residue: Residue,
    /// BullMQ's reason, if the residue is `failed`.
    pub failed_reason: Option<String>,
}

/// What an absent job left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Residue {
    /// Nothing.
    None,
    /// A retained completed entry: the work was done, the row was not told.
    Completed,
    /// A retained failed entry.
    Failed,
    /// The entry's hash, in no list.
    HashOnly,
}

/// Of a worker's error only the beginning helps; a stack trace in a status message helps nobody.
const FAILED_REASON_CHARS_MAX: usize = 300;

impl Job {
    /// Reads the job's columns from the JSON object the host sends.
    pub fn parse_columns(json: &str) -> Result<Row, Error> {
        Row::parse("the job's row", json).map_err(Error::Columns)
    }

    /// A fail reason that also tells what the queue knows.
    ///
    /// `sentence` says why the job cannot be put back. If the job left a failed or completed entry, that is added in
    /// brackets, with BullMQ's reason on one line and cut to 300 characters; the result is still one sentence.
    pub fn reason(&self, sentence: &str) -> String {
        let known = match (self.residue, self.failed_reason.as_deref()) {
            (Residue::Failed, Some(reason)) if !reason.trim().is_empty() => {
                format!("its last attempt failed: {}", one_line(reason, FAILED_REASON_CHARS_MAX))
            }
            (Residue::Failed, _) => "the queue shows the job as failed".to_owned(),
            (Residue::Completed, _) => {
                "the queue shows the job as completed, but its result was never recorded".to_owned()
            }
            (Residue::None | Residue::HashOnly, _) => return sentence.to_owned(),
        };
        format!("{} ({known}).", sentence.trim_end_matches('.'))
    }

    /// The error for a source or job type that `decide` has no rule for.
    pub fn no_rule(&self) -> Error {
        Error::NoRule { source_name: self.source.clone(), job_type: self.job_type.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(residue: Residue, failed_reason: Option<&str>) -> Job {
        Job {
            domain: "slides".to_owned(),
            source: "generation".to_owned(),
            id: "j1".to_owned(),
            job_type: "GENERATION".to_owned(),
            status: "QUEUED".to_owned(),
            updated_at: "2026-01-01T00:00:00.000000Z".to_owned(),
            columns: Job::parse_columns("{}").unwrap(),
            recoveries: 0,
            residue,
            failed_reason: failed_reason.map(str::to_owned),
        }
    }

    fn reason(residue: Residue, failed_reason: Option<&str>) -> String {
        job(residue, failed_reason).reason("It is gone.")
    }

    #[test]
    fn a_reason_tells_what_the_queue_knows() {
        assert_eq!(reason(Residue::None, None), "It is gone.");
        assert_eq!(reason(Residue::HashOnly, None), "It is gone.");
        assert_eq!(reason(Residue::Failed, Some(" ")), "It is gone (the queue shows the job as failed).");
        assert_eq!(
            reason(Residue::Failed, Some("disk\nfull")),
            "It is gone (its last attempt failed: disk full)."
        );
        assert_eq!(
            reason(Residue::Completed, None),
            "It is gone (the queue shows the job as completed, but its result was never recorded)."
        );
    }

    #[test]
    fn a_long_failed_reason_is_cut() {
        let reason = reason(Residue::Failed, Some(&"é".repeat(10_000)));
        assert!(reason.chars().count() < 400, "{}", reason.len());
        assert!(reason.ends_with("é…)."));
    }

    #[test]
    fn columns_that_do_not_parse_are_an_error() {
        let message = Job::parse_columns("[1]").unwrap_err().chain();
        assert!(message.starts_with("columns of the job: expected one JSON object: "), "{message}");
    }
}
