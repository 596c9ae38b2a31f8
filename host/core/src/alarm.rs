//! What a pass tells the operator at once, and keeps with its record.

use serde::{Deserialize, Serialize};

use crate::source::SourceName;

/// Something about one source that a person should look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// The source.
    pub source: SourceName,
    /// What is the matter, and what to do.
    pub text: String,
}
