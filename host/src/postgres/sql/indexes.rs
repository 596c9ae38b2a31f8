//! Statements that make a job table's live-row index.

use salvage_core::source::ResolvedSource;
use sha2::{Digest, Sha256};

use super::{Text, identifier, literals};

/// The longest name PostgreSQL keeps whole, in bytes.
const NAME_BYTES_MAX: usize = 63;

const SUFFIX: &str = "_salvage_live";

/// The index `(id) WHERE status IN (queued, processing)` on one table.
pub(in super::super) fn create_live_row_index(source: &ResolvedSource, schema: &str, table: &str) -> Text {
    let mapping = &source.declared.table;
    let name = name(table);
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

/// The table's name and the suffix. If both do not fit, a digest keeps tables apart that differ only in what is cut off,
/// as partitions of one table do.
fn name(table: &str) -> String {
    if table.len() + SUFFIX.len() <= NAME_BYTES_MAX {
        return format!("{table}{SUFFIX}");
    }
    let digest: String = Sha256::digest(table).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let mut end = NAME_BYTES_MAX - SUFFIX.len() - digest.len() - 1;
    while !table.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}_{digest}{SUFFIX}", &table[..end])
}

/// Takes away what a broken build has left.
pub(in super::super) fn drop_index(schema: &str, name: &str) -> Text {
    Text(format!("DROP INDEX CONCURRENTLY {}.{}", identifier(schema), identifier(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_stay_within_the_limit_and_apart() {
        assert_eq!(name("SlideJob"), "SlideJob_salvage_live");
        let long = |end: &str| name(&format!("{}{end}", "ä".repeat(28)));
        assert!(long("2024").len() <= NAME_BYTES_MAX);
        assert_ne!(long("2024"), long("2025"));
    }
}
