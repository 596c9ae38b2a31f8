//! The fence: generation and pass token of each scope.
//!
//! A writer takes its row with a share lock and keeps that lock until its transaction ends. So the fence is never raised
//! between a writer's check and its commit; whoever raises it waits, at most until PostgreSQL has ended a writer that
//! froze (5 s without a statement).

use salvage_core::lease::Fence;

use super::Postgres;
use super::session::{Mode, Session, Statement};
use crate::ports::StoreFailure;

const RAISE: &str = "INSERT INTO salvage.fence AS f (scope, generation, pass_token) VALUES ($1, 1, $2) \
    ON CONFLICT (scope) DO UPDATE SET generation = f.generation + 1, pass_token = EXCLUDED.pass_token, \
    raised_at = clock_timestamp() RETURNING f.generation";

const READ: &str = "SELECT f.generation, f.pass_token FROM salvage.fence AS f WHERE f.scope = $1 FOR SHARE";

pub(super) async fn raise(postgres: &Postgres, scope: &str, pass_token: &str) -> Result<Fence, StoreFailure> {
    let mut session = postgres.open(Mode::Raise, "raise the fence").await?;
    let (generation,): (i64,) = session.one(Statement::fixed(RAISE).bind(scope).bind(pass_token)).await?;
    session.commit().await?;
    Ok(Fence {
        scope: scope.to_owned(),
        generation: generation.unsigned_abs(),
        pass_token: pass_token.to_owned(),
    })
}

/// Checks that the fence is still ours, and keeps it from being raised until the session ends.
///
/// # Errors
/// [`StoreFailure::Fenced`] if it is not, and whatever kept PostgreSQL from answering.
pub(super) async fn check(session: &mut Session, fence: &Fence) -> Result<(), StoreFailure> {
    let found: Option<(i64, String)> = session.optional(Statement::fixed(READ).bind(&fence.scope)).await?;
    match found {
        Some((generation, pass_token))
            if generation.unsigned_abs() == fence.generation && pass_token == fence.pass_token =>
        {
            Ok(())
        }
        _ => Err(StoreFailure::Fenced { ours: fence.generation }),
    }
}
