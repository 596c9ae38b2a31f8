//! Statements that make a job table's live-row index.

use salvage_core::source::ResolvedSource;

use super::{Text, identifier, literals};

/// The longest name PostgreSQL keeps whole, in bytes.
const NAME_BYTES_MAX: usize = 63;

const SUFFIX: &str = "_salvage_live";

/// The index `(id) WHERE status IN (queued, processing)` on one table.
pub(in super::super) fn create_live_row_index(source: &ResolvedSource, schema: &str, table: &str) -> Text {
    let mapping = &source.declared.table;
    let mut end = table.len().min(NAME_BYTES_MAX - SUFFIX.len());
    while !table.is_char_boundary(end) {
        end -= 1;
    }
    let name = format!("{}{SUFFIX}", &table[..end]);
    Text(format!(
        "CREATE INDEX CONCURRENTLY {name} ON {schema}.{table} ({id}) WHERE {status} IN ({live})",
        name = identifier(&name),
        schema = identifier(schema),
        table = identifier(table),
        id = identifier(&mapping.id),
        status = identifier(&mapping.status),
        live = literals([&mapping.queued, &mapping.processing]),
    ))
}

/// Takes away what a broken build has left.
pub(in super::super) fn drop_index(schema: &str, name: &str) -> Text {
    Text(format!("DROP INDEX CONCURRENTLY {}.{}", identifier(schema), identifier(name)))
}
