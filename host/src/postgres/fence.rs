//! The fence: generation and pass token of each scope.
//!
//! A writer takes its row with a share lock and keeps that lock until its transaction ends. So the fence is never raised
//! between a writer's check and its commit; whoever raises it waits, at most until PostgreSQL has ended a writer that
//! froze (5 s without a statement).
//!
//! All hosts of a deployment have the same kind of scope: one over all domains, or one each. Under two kinds a late
//! writer of the one would not be fenced off by the other. So a fence is raised only if no fence of the other kind was
//! raised for as long as its hosts would rest between two passes; and what is left of that kind is *retired* then, that
//! is, it gets the empty token, which no pass has: a host of it that was frozen all the while writes nothing any more.
//! (Two hosts of different kinds that start in the very same moment both pass once, and then both refuse. It is double
//! work; what guards each row and each queue guards it still.)

use std::time::Duration;

use salvage_core::lease::{Fence, GLOBAL, ScopeKind};

use super::session::{Mode, Session, Statement};
use super::{Postgres, sql};
use crate::ports::StoreFailure;

const RAISE: &str = "INSERT INTO salvage.fence AS f (scope, generation, pass_token) VALUES ($1, 1, $2) \
    ON CONFLICT (scope) DO UPDATE SET generation = f.generation + 1, pass_token = EXCLUDED.pass_token, \
    raised_at = clock_timestamp() RETURNING f.generation";

/// The fence of the other kind that was raised last, and how long ago; `$1`: whether ours is the one over all domains.
const OTHER: &str = "SELECT f.scope, extract(epoch FROM clock_timestamp() - f.raised_at)::bigint \
    FROM salvage.fence AS f WHERE (f.scope = 'global') <> $1 AND f.pass_token <> '' ORDER BY f.raised_at DESC LIMIT 1";

/// In the order of the key, so that two who retire do not wait for each other.
const RETIRE: &str = "UPDATE salvage.fence AS f SET pass_token = '' FROM (SELECT o.scope FROM salvage.fence AS o \
    WHERE (o.scope = 'global') <> $1 AND o.pass_token <> '' ORDER BY o.scope FOR UPDATE) AS o WHERE f.scope = o.scope";

/// Answers whether there is anything to retire.
async fn other_is_left(session: &mut Session, kind: ScopeKind, rest: Duration) -> Result<bool, StoreFailure> {
    let is_global = kind == ScopeKind::Global;
    let found: Option<(String, i64)> = session.optional(Statement::fixed(OTHER).bind(is_global)).await?;
    match found {
        None => Ok(false),
        Some((_, seconds)) if seconds.unsigned_abs() >= rest.as_secs() => Ok(true),
        Some((found, seconds)) => Err(StoreFailure::OtherScope {
            ours: kind.word(),
            found,
            seconds: seconds.unsigned_abs(),
            rest_seconds: rest.as_secs(),
        }),
    }
}

pub(super) async fn check_scope(postgres: &Postgres, kind: ScopeKind) -> Result<(), StoreFailure> {
    let mut session = postgres.open(Mode::Read, "look whose fence was raised last").await?;
    other_is_left(&mut session, kind, postgres.scope_rest).await?;
    session.commit().await
}

pub(super) async fn raise(postgres: &Postgres, scope: &str, pass_token: &str) -> Result<Fence, StoreFailure> {
    let mut session = postgres.open(Mode::Raise, "raise the fence").await?;
    let kind = if scope == GLOBAL { ScopeKind::Global } else { ScopeKind::Domain };
    if other_is_left(&mut session, kind, postgres.scope_rest).await? {
        session.execute(Statement::fixed(RETIRE).bind(kind == ScopeKind::Global)).await?;
    }
    let (generation,): (i64,) = session.one(Statement::fixed(RAISE).bind(scope).bind(pass_token)).await?;
    session.commit().await?;
    Ok(Fence {
        scope: scope.to_owned(),
        generation: generation.unsigned_abs(),
        pass_token: pass_token.to_owned(),
    })
}

/// Opens a transaction that writes under the fence, and keeps the fence from being raised until it ends. One round trip.
///
/// # Errors
/// [`StoreFailure::Fenced`] if the fence is not ours any more, and whatever kept PostgreSQL from answering.
pub(super) async fn open(
    postgres: &Postgres,
    fence: &Fence,
    attempted: impl Into<String>,
) -> Result<Session, StoreFailure> {
    let question = sql::read_fence(&fence.scope);
    let (session, found) = postgres.open_asking(Mode::Write, &question, attempted).await?;
    let found: Option<(i64, String)> = found;
    match found {
        Some((generation, pass_token))
            if generation.unsigned_abs() == fence.generation && pass_token == fence.pass_token =>
        {
            Ok(session)
        }
        _ => {
            session.roll_back().await;
            Err(StoreFailure::Fenced { ours: fence.generation })
        }
    }
}
