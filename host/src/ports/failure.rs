//! Why PostgreSQL gave no answer.

use salvage_core::lease::LeaseLoss;

/// Why a pass cannot go on: PostgreSQL gave no answer, or not the one that was asked for, or the pass lost its right to write.
#[derive(Debug, thiserror::Error)]
pub enum StoreFailure {
    /// No connection.
    #[error("no connection to PostgreSQL: {0}; check [database] url and that the server is up")]
    Unreachable(String),
    /// User, password or database refused.
    #[error("PostgreSQL refused the connection: {0}; check user, password and database in [database] url")]
    Denied(String),
    /// Salvage's own tables are missing or older than this version.
    #[error("schema `salvage` is {found}: run `salvage migrate`")]
    Schema {
        /// What was found instead.
        found: String,
    },
    /// A statement was refused.
    #[error("PostgreSQL refused to {attempted}: {message} (SQLSTATE {code})")]
    Refused {
        /// What was attempted, e.g. `list the candidates of slides/generation`.
        attempted: String,
        /// Its five characters.
        code: String,
        /// PostgreSQL's words, without values.
        message: String,
    },
    /// It takes no writes: a failover has left us at a standby, or somebody set it read-only.
    #[error(
        "PostgreSQL takes no writes: {message} (SQLSTATE 25006); if it is a standby, the next pass looks for the new primary"
    )]
    ReadOnly {
        /// PostgreSQL's words.
        message: String,
    },
    /// A newer pass of this scope has begun.
    #[error("superseded: generation {ours} is not the newest any more")]
    Fenced {
        /// Our generation.
        ours: u64,
    },
    /// Hosts of the other kind of `[lease] scope` are at work on the same tables.
    #[error(
        "this host has [lease] scope = {ours:?}, but a pass of scope {found:?} began {seconds} s ago: give all hosts the \
         same; after a change, the new kind begins once the old one was not used for {rest_seconds} s"
    )]
    OtherScope {
        /// The setting of this host.
        ours: &'static str,
        /// `global`, or a domain.
        found: String,
        /// Since that pass began.
        seconds: u64,
        /// How long it must be.
        rest_seconds: u64,
    },
    /// What was to be done cannot be done through a transaction pooler.
    #[error(
        "to {attempted} takes a connection to PostgreSQL itself, and [database] pooler = \"transaction\" says that there is \
         a pooler in between: run this once with DATABASE_URL naming the server and SALVAGE_DATABASE__POOLER=none"
    )]
    Pooled {
        /// What was attempted.
        attempted: &'static str,
    },
    /// This pass's lease is not to be trusted any more.
    #[error("the lease was lost: {0}")]
    LeaseLost(LeaseLoss),
    /// A reply that cannot be.
    #[error("PostgreSQL sent an unexpected reply to {attempted}: {detail}")]
    Unexpected {
        /// What was attempted.
        attempted: String,
        /// What is odd about it.
        detail: String,
    },
}

impl StoreFailure {
    /// Whether it concerns the statement alone, so that other work can go on.
    ///
    /// Exhausted resources (53) and trouble of the server itself (58, XX) will refuse the next statement as well, unless
    /// it was a trigger that raised them.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Refused { code, .. } => !["53", "58", "XX"].iter().any(|class| code.starts_with(class)),
            Self::Unexpected { .. } => true,
            _ => false,
        }
    }
}
