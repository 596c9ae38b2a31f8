//! The live-row index of a user's own job table: made only when the operator asks for it.
//!
//! CONCURRENTLY, so that the application goes on writing; on a partitioned table partition by partition, since the parent
//! itself cannot be indexed so. An invalid leftover of an earlier, broken build is dropped first.

use salvage_core::source::ResolvedSource;
use sqlx::{AssertSqlSafe, Connection, SqlSafeStr};

use super::session::{Mode, Statement};
use super::{ACQUIRE_TIMEOUT, Postgres, error, sql};
use crate::ports::StoreFailure;

/// Statements that give a source its live-row index where it has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPlan {
    /// In order; empty if there is nothing to do.
    pub statements: Vec<String>,
}

impl Postgres {
    /// What has to be run to give a source its live-row index. Reads only.
    ///
    /// # Errors
    /// If the catalog could not be read.
    pub async fn index_plan(&self, source: &ResolvedSource) -> Result<IndexPlan, StoreFailure> {
        let mut session = self.open(Mode::Read, format!("list the indexes of {}", source.name)).await?;
        let partitions = Statement::fixed(PARTITIONS).bind(sql::table(&source.declared.table.table));
        let tables: Vec<(String, String)> = session.all(partitions).await?;
        let mut statements = Vec::new();
        for (schema, table) in tables {
            let indexes = Statement::fixed(LIVE_ROW_INDEXES)
                .bind(&schema)
                .bind(&table)
                .bind(&source.declared.table.id)
                .bind(&source.declared.table.queued)
                .bind(&source.declared.table.processing);
            let indexes: Vec<(String, bool)> = session.all(indexes).await?;
            if indexes.iter().any(|(_, is_valid)| *is_valid) {
                continue;
            }
            let invalid = indexes.iter().map(|(name, _)| sql::drop_index(&schema, name));
            statements.extend(invalid.map(|text| text.0));
            statements.push(sql::create_live_row_index(source, &schema, &table).0);
        }
        session.commit().await?;
        Ok(IndexPlan { statements })
    }

    /// Runs one statement of an [`IndexPlan`], outside of any transaction and without our usual limits: on a large table it
    /// takes minutes.
    ///
    /// # Errors
    /// If PostgreSQL refused it; an invalid index may be left, which the next plan drops.
    pub async fn run_index_statement(&self, statement: &str) -> Result<(), StoreFailure> {
        self.need_direct("build an index")?;
        let mut connection = self.connect(ACQUIRE_TIMEOUT).await?;
        // The role or the database may have a limit of its own. In a message of its own: together with another
        // statement the index would be built in a transaction, which CONCURRENTLY refuses.
        let unlimited = sqlx::raw_sql("SET statement_timeout = 0").execute(&mut connection).await;
        unlimited.map_err(|failure| error::failure("build an index", &failure))?;
        let sql = AssertSqlSafe(statement.to_owned()).into_sql_str();
        let done = sqlx::raw_sql(sql).execute(&mut connection).await;
        drop(connection.close().await);
        done.map(|_| ()).map_err(|failure| error::failure("build an index", &failure))
    }
}

/// The table itself, or the leaf partitions of a partitioned one.
const PARTITIONS: &str = "\
    SELECT n.nspname::text, c.relname::text \
    FROM pg_partition_tree(to_regclass($1)) AS p \
    JOIN pg_class AS c ON c.oid = p.relid JOIN pg_namespace AS n ON n.oid = c.relnamespace \
    WHERE p.isleaf \
    UNION \
    SELECT n.nspname::text, c.relname::text \
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
    WHERE c.oid = to_regclass($1) AND c.relkind = 'r' \
    ORDER BY 1, 2";

/// Indexes on the id column alone whose predicate names both live statuses, and whether each is valid.
const LIVE_ROW_INDEXES: &str = "\
    SELECT i.relname::text, x.indisvalid \
    FROM pg_index AS x \
    JOIN pg_class AS i ON i.oid = x.indexrelid \
    JOIN pg_class AS c ON c.oid = x.indrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace \
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = x.indkey[0] \
    WHERE n.nspname = $1 AND c.relname = $2 AND x.indnkeyatts = 1 AND a.attname = $3 \
      AND position(quote_literal($4) IN pg_get_expr(x.indpred, x.indrelid)) > 0 \
      AND position(quote_literal($5) IN pg_get_expr(x.indpred, x.indrelid)) > 0 \
    ORDER BY 1";
