//! What a pass tells the operator at once, and keeps with its record.

use serde::{Deserialize, Serialize};

use crate::source::SourceName;

/// Something about one source that a person should look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// The source.
    pub source: SourceName,
    /// What kind of thing.
    pub kind: AlarmKind,
    /// What is the matter, and what to do.
    pub text: String,
}

/// What there is to be alarmed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlarmKind {
    /// Most jobs of a source are lost.
    MassLoss,
    /// What was put back or failed is not to be seen.
    Unseen,
    /// Many jobs would be failed without a trace of having run.
    Storm,
    /// Young rows have no entries: the declaration is wrong.
    Control,
    /// A row was attributed to an entry that the operator had called somebody else's.
    ForeignName,
}
