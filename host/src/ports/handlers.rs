//! The domains' components.

use salvage_core::candidate::Candidate;
use salvage_core::decision::Decision;
use salvage_core::sighting::Residue;
use salvage_core::source::ResolvedSource;
use salvage_core::usage::Usage;

use super::{JobInputs, LoadedDomain};

/// What `decide` is shown.
#[derive(Debug)]
pub struct Question<'a> {
    /// The orphan.
    pub candidate: &'a Candidate,
    /// Its source.
    pub source: &'a ResolvedSource,
    /// Its row and reads.
    pub inputs: &'a JobInputs,
    /// What it left behind.
    pub residue: &'a Residue,
    /// Recoveries within the window.
    pub recoveries: u32,
}

/// Why a handler gave no decision. Costs that orphan its decision in this pass, never the pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandlerFault {
    /// It ran longer than it may.
    #[error("timeout: ran longer than {limit_ms} ms")]
    Timeout {
        /// The limit.
        limit_ms: u64,
    },
    /// It wanted more memory than it may have.
    #[error("memory: wanted {wanted} bytes over all memories, the limit is {limit}")]
    Memory {
        /// Bytes over all its memories.
        wanted: u64,
        /// The limit.
        limit: u64,
    },
    /// Its answer, or what it wrote to stdout or stderr, is larger than it may be.
    #[error("output: answered or wrote {bytes} bytes, the limit is {limit}")]
    Output {
        /// Bytes of the answer, or bytes written when it was ended.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// It trapped.
    #[error("trap: {message}")]
    Trap {
        /// The panic message with its place if there is one, else the engine's first line.
        message: String,
    },
    /// It returned an error of its own.
    #[error("handler error: {0}")]
    Error(String),
    /// It failed so often that it is hardly asked any more; the text has reason and ways out.
    #[error("quarantined: {0}")]
    Quarantined(String),
    /// No such handler serves any more.
    #[error("no handler serves domain {0:?}")]
    NotLoaded(String),
}

/// A decision and what it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What the handler answered.
    pub decision: Result<Decision, HandlerFault>,
    /// What the call used; `None` if there was none.
    pub usage: Option<Usage>,
}

/// The domains' components.
pub trait Handlers {
    /// Every domain that serves, in the order in which they were loaded.
    fn domains(&self) -> Vec<LoadedDomain>;

    /// What was loaded meanwhile takes its place. To be called before each pass, and never while one is under way: a pass
    /// asks the same build of a handler from beginning to end.
    async fn between_passes(&self) {}

    /// Asks a domain's handler for one orphan, in a fresh store, within its limits.
    async fn decide(&self, question: &Question<'_>) -> Answer;
}
