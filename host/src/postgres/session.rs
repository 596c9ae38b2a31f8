//! One transaction on one connection: the only way in which this adapter talks to PostgreSQL.
//!
//! Reads are transactions too. Behind a pooler that hands out servers per transaction, a statement outside of one may be
//! parsed on one server and bound on another; and inside one, PostgreSQL's own timeouts end what hangs.

use std::time::Duration;

use salvage_core::act::STATEMENT_TIMEOUT;
use salvage_core::source::ResolvedSource;
use sqlx::error::BoxDynError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnection, PgPool, PgRow};
use sqlx::{Arguments, AssertSqlSafe, Encode, FromRow, SqlSafeStr, SqlStr, Type};
use tokio::time::error::Elapsed;

use super::at_hand::AtHand;
use super::sql;
use super::{Postgres, error};
use crate::ports::StoreFailure;

/// How long we wait for a reply: longer than PostgreSQL waits before it ends a statement by itself, so that this strikes
/// only if the server or the way to it hangs.
pub(super) const REPLY_TIMEOUT: Duration = STATEMENT_TIMEOUT.saturating_add(Duration::from_secs(2));

/// What a transaction is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// One snapshot over all its statements; PostgreSQL refuses any write.
    Read,
    /// Waits for locks only as long as [`salvage_core::act::LOCK_TIMEOUT`].
    Write,
    /// Raises the fence: waits for a lock until PostgreSQL has ended whoever froze while holding it.
    Raise,
}

/// A statement and its parameters, all of which are text, numbers or booleans; the SQL casts them.
pub(super) struct Statement {
    sql: SqlStr,
    arguments: Result<PgArguments, BoxDynError>,
}

impl Statement {
    /// A statement written out in the source.
    pub(super) fn fixed(sql: &'static str) -> Self {
        Self { sql: sql.into_sql_str(), arguments: Ok(PgArguments::default()) }
    }

    /// A statement built by [`super::sql`].
    pub(super) fn built(sql: sql::Text) -> Self {
        Self { sql: AssertSqlSafe(sql.0).into_sql_str(), arguments: Ok(PgArguments::default()) }
    }

    /// Adds the next parameter.
    pub(super) fn bind<'t, T>(mut self, value: T) -> Self
    where
        T: Encode<'t, sqlx::Postgres> + Type<sqlx::Postgres>,
    {
        if let Ok(arguments) = &mut self.arguments
            && let Err(error) = arguments.add(value)
        {
            self.arguments = Err(error);
        }
        self
    }
}

/// An open transaction. Dropped before its end, its connection is closed, and PostgreSQL rolls it back.
#[derive(Debug)]
pub(super) struct Session {
    /// There until it is dropped.
    connection: Option<PoolConnection<sqlx::Postgres>>,
    pool: PgPool,
    at_hand: AtHand,
    attempted: String,
    /// Whether statements are named, and so parsed once per connection.
    is_named: bool,
    is_over: bool,
    /// The server takes no writes: another one may by now, behind the same address.
    is_useless: bool,
}

impl Postgres {
    /// Opens a transaction; `attempted` completes "PostgreSQL refused to …".
    pub(super) async fn open(
        &self,
        mode: Mode,
        attempted: impl Into<String>,
    ) -> Result<Session, StoreFailure> {
        let (session, _) = self.begin(self.opening(mode), attempted.into()).await?;
        Ok(session)
    }

    /// The same, with a first question in the same round trip; its row, if there is one.
    pub(super) async fn open_asking<T>(
        &self,
        mode: Mode,
        question: &sql::Text,
        attempted: impl Into<String>,
    ) -> Result<(Session, Option<T>), StoreFailure>
    where
        T: for<'r> FromRow<'r, PgRow>,
    {
        let both = format!("{}; {}", self.opening(mode), question.0);
        let (session, rows) = self.begin(both, attempted.into()).await?;
        let row = rows.first().map(T::from_row).transpose();
        let row = row.map_err(|error| error::failure(&session.attempted, &error))?;
        Ok((session, row))
    }

    /// In each transaction, since behind a pooler a session's settings are another client's.
    fn opening(&self, mode: Mode) -> String {
        let opening = sql::opening(mode).0;
        match &self.search_path {
            Some(schemas) => format!("{opening}; SET LOCAL search_path = {schemas}"),
            None => opening,
        }
    }

    /// A transaction and the rows of its first message.
    async fn begin(&self, opening: String, attempted: String) -> Result<(Session, Vec<PgRow>), StoreFailure> {
        if let Some(connection) = self.at_hand.take() {
            let mut session = self.session(connection, attempted.clone());
            let answered = session.first(opening.clone()).await;
            let is_answered = answered.is_ok();
            match session.told(answered) {
                // It was lost while nobody used it, and so may be the others. Nothing was begun. Who does not answer at
                // all is not asked twice.
                Err(StoreFailure::Unreachable(_)) if is_answered => self.at_hand.close_all(),
                told => return Ok((session, told?)),
            }
        }
        let mut session = self.session(self.connection().await?, attempted);
        let answered = session.first(opening).await;
        let rows = session.told(answered)?;
        Ok((session, rows))
    }

    fn session(&self, connection: PoolConnection<sqlx::Postgres>, attempted: String) -> Session {
        Session {
            connection: Some(connection),
            pool: self.pool.clone(),
            at_hand: self.at_hand.clone(),
            attempted,
            is_named: !self.is_pooled(),
            is_over: false,
            is_useless: false,
        }
    }

    /// The same, for what is read of a source: under its handler's role, if it has one.
    pub(super) async fn open_for(
        &self,
        source: &ResolvedSource,
        mode: Mode,
        attempted: impl Into<String>,
    ) -> Result<Session, StoreFailure> {
        let mut session = self.open(mode, attempted).await?;
        session.take_role(source).await?;
        Ok(session)
    }
}

impl Session {
    /// Opens it, by statements without parameters.
    async fn first(&mut self, opening: String) -> Answered<Vec<PgRow>> {
        let raw = sqlx::raw_sql(AssertSqlSafe(opening));
        tokio::time::timeout(REPLY_TIMEOUT, raw.fetch_all(connection(&mut self.connection))).await
    }

    fn told<T>(&mut self, answered: Answered<T>) -> Result<T, StoreFailure> {
        let told = told(&self.attempted, answered);
        self.noted(told)
    }

    /// All rows.
    pub(super) async fn all<T>(&mut self, statement: Statement) -> Result<Vec<T>, StoreFailure>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let arguments = self.encoded(statement.arguments)?;
        let query = sqlx::query_as_with::<_, T, _>(statement.sql, arguments).persistent(self.is_named);
        let answered = within(&self.attempted, query.fetch_all(connection(&mut self.connection))).await;
        self.noted(answered)
    }

    /// The one row, if there is one.
    pub(super) async fn optional<T>(&mut self, statement: Statement) -> Result<Option<T>, StoreFailure>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let arguments = self.encoded(statement.arguments)?;
        let query = sqlx::query_as_with::<_, T, _>(statement.sql, arguments).persistent(self.is_named);
        let answered = within(&self.attempted, query.fetch_optional(connection(&mut self.connection))).await;
        self.noted(answered)
    }

    /// The row that is always there.
    pub(super) async fn one<T>(&mut self, statement: Statement) -> Result<T, StoreFailure>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let row = self.optional(statement).await?;
        row.ok_or_else(|| StoreFailure::Unexpected {
            attempted: self.attempted.clone(),
            detail: "no row where there is always one".to_owned(),
        })
    }

    /// How many rows were written.
    pub(super) async fn execute(&mut self, statement: Statement) -> Result<u64, StoreFailure> {
        let arguments = self.encoded(statement.arguments)?;
        let query = sqlx::query_with(statement.sql, arguments).persistent(self.is_named);
        let answered = within(&self.attempted, query.execute(connection(&mut self.connection))).await;
        Ok(self.noted(answered)?.rows_affected())
    }

    /// Ends the transaction and keeps what it wrote.
    ///
    /// # Errors
    /// If the reply was lost or refused: what it wrote may or may not be kept.
    pub(super) async fn commit(mut self) -> Result<(), StoreFailure> {
        self.control(sql::Text("COMMIT".to_owned())).await?;
        self.is_over = true;
        Ok(())
    }

    /// Ends the transaction and undoes what it wrote. If PostgreSQL cannot be told, closing the connection tells it.
    pub(super) async fn roll_back(mut self) {
        self.is_over = self.control(sql::Text("ROLLBACK".to_owned())).await.is_ok();
    }

    /// Checks every deferred constraint now, while nothing outside depends on the answer.
    pub(super) async fn check_constraints(&mut self) -> Result<(), StoreFailure> {
        self.control(sql::Text("SET CONSTRAINTS ALL IMMEDIATE".to_owned())).await
    }

    /// From here on PostgreSQL grants only what the source's handler is granted; until [`Self::leave_role`], or the
    /// transaction's end.
    pub(super) async fn take_role(&mut self, source: &ResolvedSource) -> Result<(), StoreFailure> {
        match &source.database_role {
            Some(role) => self.control(sql::take_role(role)).await,
            None => Ok(()),
        }
    }

    /// What follows is the host's own business.
    pub(super) async fn leave_role(&mut self, source: &ResolvedSource) -> Result<(), StoreFailure> {
        match &source.database_role {
            Some(_) => self.control(sql::leave_role()).await,
            None => Ok(()),
        }
    }

    fn encoded(&self, arguments: Result<PgArguments, BoxDynError>) -> Result<PgArguments, StoreFailure> {
        arguments.map_err(|error| StoreFailure::Unexpected {
            attempted: self.attempted.clone(),
            detail: format!("a parameter could not be sent: {error}"),
        })
    }

    /// A statement without parameters and rows, in the simple protocol.
    pub(super) async fn control(&mut self, sql: sql::Text) -> Result<(), StoreFailure> {
        let raw = sqlx::raw_sql(AssertSqlSafe(sql.0));
        let answered = within(&self.attempted, raw.execute(connection(&mut self.connection))).await;
        self.noted(answered)?;
        Ok(())
    }

    /// A server that takes no writes is a standby, as a rule: connections that were made before it became one would lead
    /// there for ever. None is kept, so that the next one leads to whoever is the primary then.
    fn noted<T>(&mut self, answered: Result<T, StoreFailure>) -> Result<T, StoreFailure> {
        if matches!(answered, Err(StoreFailure::ReadOnly { .. })) {
            self.is_useless = true;
            self.at_hand.close_all();
            while let Some(mut idle) = self.pool.try_acquire() {
                idle.close_on_drop();
            }
        }
        answered
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        if self.is_over && !self.is_useless {
            self.at_hand.keep(connection);
        } else {
            connection.close_on_drop();
        }
    }
}

/// A session's connection.
fn connection(held: &mut Option<PoolConnection<sqlx::Postgres>>) -> &mut PgConnection {
    held.as_mut().expect("it is there until the session is dropped")
}

/// Waits for a reply, but not for ever.
pub(super) async fn within<T>(
    attempted: &str,
    reply: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreFailure> {
    told(attempted, tokio::time::timeout(REPLY_TIMEOUT, reply).await)
}

/// A reply, if it came in time.
type Answered<T> = Result<Result<T, sqlx::Error>, Elapsed>;

fn told<T>(attempted: &str, answered: Answered<T>) -> Result<T, StoreFailure> {
    match answered {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => Err(error::failure(attempted, &error)),
        Err(_) => Err(StoreFailure::Unreachable(format!(
            "no reply within {} s to the attempt to {attempted}",
            REPLY_TIMEOUT.as_secs()
        ))),
    }
}
