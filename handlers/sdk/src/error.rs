//! Why a job could not be judged.

/// Costs one orphan its decision in this pass; nothing is written for it.
///
/// Meant for what should not happen: a fault of the handler, the manifest or the host. A job that cannot be rebuilt is
/// not an error but [`Decision::fail`](crate::Decision::fail).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The job's columns did not parse.
    #[error("columns of the job: expected one JSON object")]
    Columns(#[source] serde_json::Error),
    /// A row of an input did not parse.
    #[error("input `{input}`, row {row}: expected one JSON object")]
    InputRow {
        /// The read's name.
        input: String,
        /// Counted from 1.
        row: usize,
        /// What the parser found.
        source: serde_json::Error,
    },
    /// An input that no read of the source declares was asked for.
    #[error("input `{input}` was not given (declare a read of that name in the manifest)")]
    InputNotGiven {
        /// The name asked for.
        input: String,
    },
    /// A column that was not read was asked for.
    #[error("{row}: column `{column}` was not given (name it in the manifest)")]
    ColumnNotGiven {
        /// Which row.
        row: String,
        /// The name asked for.
        column: String,
    },
    /// A column holds another kind of value than was asked for.
    #[error("{row}: column `{column}`: expected {expected}, found {found}")]
    ColumnKind {
        /// Which row.
        row: String,
        /// The column.
        column: String,
        /// The kind asked for.
        expected: &'static str,
        /// The kind that is there, never the value.
        found: &'static str,
    },
    /// `decide` was asked about a source or job type that it has no rule for.
    #[error("no rule for job type `{job_type}` of source `{source_name}`")]
    NoRule {
        /// The source's name.
        source_name: String,
        /// The job type.
        job_type: String,
    },
    /// Anything else a handler has to say.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// The error and its causes on one line, as the host receives it.
    pub fn chain(&self) -> String {
        let mut line = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            line.push_str(": ");
            line.push_str(&error.to_string());
            cause = error.source();
        }
        line
    }
}

impl From<String> for Error {
    fn from(message: String) -> Self {
        Error::Other(message)
    }
}

impl From<&str> for Error {
    fn from(message: &str) -> Self {
        Error::Other(message.to_owned())
    }
}
