//! The act: the only file that writes job rows.
//!
//! ```text
//! timeouts, fence ─▶ job row, whole token ─▶ parent row ─▶ inputs again ─▶ job ─▶ parent ─▶ constraints ─▶ ledger
//!        │                  │                    │              │           │        │          │
//!        ▼                  ▼                    ▼              ▼           └────────┴──────────┴─▶ parked
//!      fenced      superseded, gone         superseded     superseded
//! ```
//!
//! Whatever PostgreSQL can refuse is refused before the queue is touched; that is why deferred constraints are checked
//! at the end and not left to COMMIT. Whatever ends early is rolled back: nothing was written.
//!
//! The job's row is never waited for: who holds it is writing it. The parent's row is, for as long as the lock timeout
//! (250 ms): several orphans of one parent are acted on at once, and with SKIP LOCKED one of them would win in each pass
//! and the others wait for as many passes. The promise it serves is kept all the same: an application that locks the
//! parent and then the job waits for us no longer than that, which is far below the `deadlock_timeout` after which
//! PostgreSQL would look for a victim. The parent comes before the look at its other jobs, so that of two siblings that
//! fail together the second sees the first as failed, and the parent follows.

use salvage_core::act::{Act, Change, ParentAct};
use salvage_core::candidate::RowToken;
use salvage_core::lease::Fence;
use salvage_core::ledger::Entry;
use salvage_core::outcome::Outcome;
use salvage_core::source::{IdKind, ResolvedSource};

use super::session::{Session, Statement};
use super::{Postgres, error, fence, inputs, ledger, sql};
use crate::ports::{HeldJob, Hold, StoreFailure};

/// A job's row, changed in a transaction that is still open.
#[derive(Debug)]
pub struct Held {
    session: Session,
}

impl HeldJob for Held {
    async fn commit(self) -> Result<(), StoreFailure> {
        self.session.commit().await
    }

    async fn roll_back(self) {
        self.session.roll_back().await;
    }
}

/// Why an act ends before the queue's turn.
enum Ending {
    /// The row is not ours to change.
    Not(Outcome),
    /// PostgreSQL failed.
    Failed(StoreFailure),
    /// Either PostgreSQL failed, or a trigger of this row raised what looks like it.
    Unclear(StoreFailure),
}

impl From<Outcome> for Ending {
    fn from(outcome: Outcome) -> Self {
        Self::Not(outcome)
    }
}

pub(super) async fn hold(
    postgres: &Postgres,
    source: &ResolvedSource,
    act: &Act,
    fence: &Fence,
    entry: &Entry,
) -> Result<Hold<Held>, StoreFailure> {
    let attempted = format!("write job {} of {}", act.candidate.token.id, source.name);
    let mut session = match fence::open(postgres, fence, attempted).await {
        Ok(session) => session,
        Err(failure) => return ended(postgres, fence, of_ours(failure)).await.map(Hold::Not),
    };
    match attempt(&mut session, source, act, entry).await {
        Ok(()) => Ok(Hold::Held(Held { session })),
        Err(ending) => {
            session.roll_back().await;
            ended(postgres, fence, ending).await.map(Hold::Not)
        }
    }
}

async fn ended(postgres: &Postgres, fence: &Fence, ending: Ending) -> Result<Outcome, StoreFailure> {
    match ending {
        Ending::Not(outcome) => Ok(outcome),
        Ending::Failed(failure) => Err(failure),
        Ending::Unclear(failure) => whose(postgres, fence, failure).await,
    }
}

/// Asks PostgreSQL for something trivial, and so finds out whether a failure is the server's or this row's own: a trigger
/// may raise any code, and one row must not keep all others from being written.
///
/// # Errors
/// If it is the server's, with what it says to that; a lost connection that can be made anew is nobody's.
async fn whose(postgres: &Postgres, fence: &Fence, failure: StoreFailure) -> Result<Outcome, StoreFailure> {
    fence::open(postgres, fence, "see whether PostgreSQL is well").await?.commit().await?;
    Ok(match failure {
        StoreFailure::Unreachable(_) => Outcome::Refused(failure.to_string()),
        failure => Outcome::Parked(format!("{failure}; PostgreSQL itself is well, so it is this row's own")),
    })
}

/// Steps 2 to 7, in this order; each takes its lock now and not later.
async fn attempt(
    session: &mut Session,
    source: &ResolvedSource,
    act: &Act,
    entry: &Entry,
) -> Result<(), Ending> {
    session.take_role(source).await.map_err(of_ours)?;
    let job = lock_job(session, source, act).await?;
    let parent = lock_parent(session, source, act, &job).await?;
    check_inputs(session, source, act, job.columns).await?;
    update_job(session, source, act).await?;
    if let Some(parent) = parent {
        update_parent(session, source, act, &parent).await?;
    }
    session.check_constraints().await.map_err(of_the_row)?;
    session.leave_role(source).await.map_err(of_ours)?;
    let applied =
        Entry { outcome: Some(Outcome::Applied.word().to_owned()), outcome_why: None, ..entry.clone() };
    ledger::write(session, &[applied]).await.map_err(of_ours)
}

/// A job's row that is locked.
struct LockedJob {
    /// Oid of the table or partition it is in, as text.
    table: String,
    /// Its parent's key, if a parent shall be changed and it has one.
    parent_key: Option<String>,
    /// Its part of the inputs.
    columns: String,
}

/// A parent's row that is locked and may be changed.
struct LockedParent<'a> {
    act: &'a ParentAct,
    key: String,
    kind: IdKind,
}

async fn lock_job(session: &mut Session, source: &ResolvedSource, act: &Act) -> Result<LockedJob, Ending> {
    let token = &act.candidate.token;
    let statement = with_token(Statement::built(sql::lock_job(source, act.parent.as_ref())), token);
    let row: Option<(String, Option<String>, String)> =
        session.optional(statement).await.map_err(of_the_row)?;
    match row {
        Some((table, parent_key, columns)) => Ok(LockedJob { table, parent_key, columns }),
        None => Err(why_not_ours(session, source, token).await?.into()),
    }
}

/// Looks at the row that could not be locked, without a lock.
async fn why_not_ours(
    session: &mut Session,
    source: &ResolvedSource,
    token: &RowToken,
) -> Result<Outcome, Ending> {
    type Row = (String, String, Option<String>, String);
    let statement = Statement::built(sql::found_row(source)).bind(&token.id);
    let rows: Vec<Row> = session.all(statement).await.map_err(of_the_row)?;
    let is_same = |(_, status, updated_at, xmin): &&Row| {
        *status == token.status && updated_at.as_ref() == Some(&token.updated_at) && *xmin == token.xmin
    };
    if rows.iter().any(|row| is_same(&row)) {
        return Ok(Outcome::Superseded("locked: another transaction holds the row".to_owned()));
    }
    Ok(rows.first().map_or(Outcome::Gone, |(_, status, updated_at, _)| {
        Outcome::Superseded(moved_on(token, status, updated_at.as_deref()))
    }))
}

/// What became of a row that was written since its token was read.
fn moved_on(token: &RowToken, status: &str, updated_at: Option<&str>) -> String {
    if token.status != status {
        format!("the row moved on: its status is {status} now, it was {}", token.status)
    } else if updated_at == Some(&token.updated_at) {
        "the row moved on: it was written, with status and time as they were".to_owned()
    } else {
        "the row moved on: its time of update changed".to_owned()
    }
}

/// Locks the parent, and answers whether it may be changed: it exists, has a status to change from, and no other live
/// job maps to it.
async fn lock_parent<'a>(
    session: &mut Session,
    source: &ResolvedSource,
    act: &'a Act,
    job: &LockedJob,
) -> Result<Option<LockedParent<'a>>, Ending> {
    let (Some(parent), Some(key)) = (&act.parent, &job.parent_key) else { return Ok(None) };
    let kind = source.types.get(&parent.change.table, &parent.change.key).and_then(sql::id_kind);
    let kind = kind.expect("a source is resolved only if its parents' keys are ids");
    // A key that the parent's column cannot hold names no parent.
    let Some(key) = kind.normalise(key) else { return Ok(None) };
    let statement = Statement::built(sql::lock_parent(&parent.change, kind)).bind(&key);
    let found: Option<(Option<bool>,)> = session.optional(statement).await.map_err(of_the_row)?;
    if found != Some((Some(true),)) {
        return Ok(None);
    }
    // Other handlers' jobs are no business of this one's role.
    session.leave_role(source).await.map_err(of_ours)?;
    let statement = Statement::built(sql::live_sibling(source, parent, kind)).bind(&key);
    let statement = statement.bind(&job.table).bind(&act.candidate.token.id);
    let (has_live_sibling,): (bool,) = session.one(statement).await.map_err(of_the_row)?;
    session.take_role(source).await.map_err(of_ours)?;
    Ok((!has_live_sibling).then_some(LockedParent { act: parent, key, kind }))
}

/// Reads what else the decision was made on: now that the locks are held, and not in the statement that took them, whose
/// snapshot is older than they.
async fn check_inputs(
    session: &mut Session,
    source: &ResolvedSource,
    act: &Act,
    columns: String,
) -> Result<(), Ending> {
    let id = &act.candidate.token.id;
    let inputs = inputs::of_locked(session, source, id, columns).await.map_err(of_the_row)?;
    if inputs.digest == act.inputs_digest {
        Ok(())
    } else {
        Err(Outcome::Superseded("the inputs changed since the decision was made on them".to_owned()).into())
    }
}

async fn update_job(session: &mut Session, source: &ResolvedSource, act: &Act) -> Result<(), Ending> {
    let statement = Statement::built(sql::update_job(source, &act.change));
    let statement = with_token(statement, &act.candidate.token).bind(reason(&act.change));
    let written: Option<(String,)> = session.optional(statement).await.map_err(of_the_row)?;
    let mapping = &source.declared.table;
    let expected = match act.change {
        Change::Requeue { .. } => &mapping.queued,
        Change::Fail { .. } => &mapping.failed,
    };
    match written {
        Some((status,)) if status == *expected => Ok(()),
        Some((status,)) => {
            let why = format!("a trigger or rule of {} made status {expected} into {status}", mapping.table);
            Err(Outcome::Parked(why).into())
        }
        None => {
            let why = format!("a trigger or rule of {} keeps the row from being written", mapping.table);
            Err(Outcome::Parked(why).into())
        }
    }
}

async fn update_parent(
    session: &mut Session,
    source: &ResolvedSource,
    act: &Act,
    parent: &LockedParent<'_>,
) -> Result<(), Ending> {
    let change = &parent.act.change;
    let statement = Statement::built(sql::update_parent(source, &act.change, change, parent.kind));
    let statement = statement.bind(&parent.key).bind(reason(&act.change));
    let written = session.execute(statement).await.map_err(of_the_row)?;
    if written == 0 {
        let why = format!("a trigger or rule of {} keeps the parent from being written", change.table);
        return Err(Outcome::Parked(why).into());
    }
    Ok(())
}

fn with_token(statement: Statement, token: &RowToken) -> Statement {
    statement.bind(&token.id).bind(&token.status).bind(&token.updated_at).bind(&token.xmin)
}

fn reason(change: &Change) -> Option<&str> {
    match change {
        Change::Requeue { .. } => None,
        Change::Fail { reason } => Some(reason),
    }
}

/// A refusal of a statement about the application's rows: of this row alone, if its code says so.
fn of_the_row(failure: StoreFailure) -> Ending {
    match failure {
        StoreFailure::Refused { code, message, .. } if error::concerns_the_row(&code) => {
            Outcome::Parked(format!("{message} (SQLSTATE {code})")).into()
        }
        other => match of_ours(other) {
            Ending::Failed(failure) if !failure.is_local() => Ending::Unclear(failure),
            ending => ending,
        },
    }
}

/// A refusal of any statement: somebody is writing where we wanted to write, or PostgreSQL failed.
fn of_ours(failure: StoreFailure) -> Ending {
    match failure {
        StoreFailure::Refused { code, message, .. } if error::is_contention(&code) => {
            Outcome::Superseded(format!("locked: {message} (SQLSTATE {code})")).into()
        }
        other => Ending::Failed(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> RowToken {
        RowToken { id: "1".into(), status: "QUEUED".into(), updated_at: "t".into(), xmin: "7".into() }
    }

    fn check_moved(status: &str, updated_at: Option<&str>, named: &str) {
        let why = moved_on(&token(), status, updated_at);
        assert!(why.contains(named), "{why:?} does not say {named:?}");
    }

    #[test]
    fn a_row_that_moved_on_says_by_what() {
        check_moved("COMPLETED", Some("t2"), "COMPLETED");
        check_moved("QUEUED", Some("t2"), "time of update");
        check_moved("QUEUED", None, "time of update");
        check_moved("QUEUED", Some("t"), "as they were");
    }

    fn refused(code: &str) -> StoreFailure {
        StoreFailure::Refused { attempted: "write".into(), code: code.into(), message: "words".into() }
    }

    #[test]
    fn a_lock_is_not_ours_a_constraint_parks_the_row_and_the_rest_is_a_failure() {
        for code in ["55P03", "40P01", "40001"] {
            assert!(matches!(of_the_row(refused(code)), Ending::Not(Outcome::Superseded(_))), "{code}");
        }
        for code in ["23514", "22001", "P0001", "42501"] {
            assert!(matches!(of_the_row(refused(code)), Ending::Not(Outcome::Parked(_))), "{code}");
            assert!(matches!(of_ours(refused(code)), Ending::Failed(_)), "{code}");
        }
        assert!(matches!(of_the_row(refused("57014")), Ending::Failed(_)));
        for code in ["53100", "58030", "XX000"] {
            assert!(matches!(of_the_row(refused(code)), Ending::Unclear(_)), "{code}");
            assert!(matches!(of_ours(refused(code)), Ending::Failed(_)), "{code}");
        }
    }
}
