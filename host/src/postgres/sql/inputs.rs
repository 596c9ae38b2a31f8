//! Statements that read what `decide` is shown: each row as one JSON object, with cells of a fixed form.
//!
//! `row_to_json` over a list of expressions keeps the order of the columns and has no limit on their number, and as
//! `json`, not `jsonb`, it takes over a `json` column as it is.

use salvage_core::manifest::Read;
use salvage_core::source::ResolvedSource;

use super::rows::Job;
use super::{Text, TimeType, base, column, id_kind, identifier, table};

/// Of the rows with the ids in `$1`: the token, and the row's object.
pub(in super::super) fn job_objects(source: &ResolvedSource) -> Text {
    let job = Job::of(source);
    Text(format!(
        "SELECT {token}, {object} FROM {table} WHERE {id} = ANY({ids})",
        token = job.token(),
        object = job_object(source),
        table = job.table(),
        id = job.id(),
        ids = job.many_ids("$1"),
    ))
}

/// The mapped and extra columns of a job's row as an object.
pub(super) fn job_object(source: &ResolvedSource) -> String {
    let mapping = &source.declared.table;
    let mapped = [&mapping.id, &mapping.status, &mapping.updated_at];
    let optional = [&mapping.job_type, &mapping.progress, &mapping.error];
    let names = mapped.into_iter().chain(optional.into_iter().flatten()).chain(&mapping.extra_columns);
    object(source, "j", &mapping.table, names)
}

/// Of the jobs with the ids in `$1`: the number of a read, the job's id, and one row of the read as an object; ordered
/// within a read and job, and one more than the read's limit, which shows that there are more. `None` without reads.
pub(in super::super) fn read_objects(source: &ResolvedSource) -> Option<Text> {
    let reads: Vec<String> = source
        .declared
        .reads
        .iter()
        .enumerate()
        .map(|(number, read)| read_object(source, number, read))
        .collect();
    (!reads.is_empty()).then(|| {
        Text(format!(
            "SELECT a.read, a.id, a.object FROM ({reads}) AS a ORDER BY a.read, a.position",
            reads = reads.join(" UNION ALL ")
        ))
    })
}

fn read_object(source: &ResolvedSource, number: usize, read: &Read) -> String {
    let job = Job::of(source);
    let order: Vec<String> = read.order_by.iter().map(|name| column("r", name)).collect();
    // A read of one row may have no order.
    let order = if order.is_empty() { String::new() } else { format!("ORDER BY {}", order.join(", ")) };
    format!(
        "SELECT {number} AS read, {id}::text AS id, x.object, x.position FROM {jobs} CROSS JOIN LATERAL (\
         SELECT {object} AS object, row_number() OVER ({order}) AS position \
         FROM {rows} AS r WHERE {matches} {order} LIMIT {limit}) AS x \
         WHERE {id} = ANY({ids})",
        id = job.id(),
        jobs = job.table(),
        object = object(source, "r", &read.table, &read.columns),
        rows = table(&read.table),
        matches = matches(source, read),
        limit = u64::from(read.limit) + 1,
        ids = job.many_ids("$1"),
    )
}

/// The read's equality; of types that PostgreSQL does not compare, the texts.
fn matches(source: &ResolvedSource, read: &Read) -> String {
    let kind = |table: &str, column: &str| source.types.get(table, column).and_then(id_kind);
    let theirs = column("r", &read.match_column);
    let ours = column("j", &read.job_column);
    let are_alike = kind(&read.table, &read.match_column)
        .is_some_and(|theirs| kind(&source.declared.table.table, &read.job_column) == Some(theirs));
    if are_alike { format!("{theirs} = {ours}") } else { format!("{theirs}::text = {ours}::text") }
}

/// Columns as one JSON object, as text; a name given twice is there once.
fn object<'a>(
    source: &ResolvedSource,
    alias: &str,
    table: &str,
    names: impl IntoIterator<Item = &'a String>,
) -> String {
    let mut seen = Vec::new();
    let mut cells = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
            let sql_type = source.types.get(table, name).unwrap_or_default();
            cells.push(format!("{} AS {}", cell(&column(alias, name), sql_type), identifier(name)));
        }
    }
    format!("(SELECT row_to_json(o) FROM (SELECT {}) AS o)::text", cells.join(", "))
}

/// A column's value in the form of the contract: what JSON's numbers cannot hold, as text; times in RFC 3339.
fn cell(expression: &str, sql_type: &str) -> String {
    if let Some(time) = TimeType::parse(sql_type) {
        let utc = time.utc(expression);
        return format!(
            "CASE WHEN isfinite({expression}) \
             THEN to_char({utc}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') ELSE {expression}::text END"
        );
    }
    let plain = ["smallint", "integer", "real", "double precision", "boolean", "json", "jsonb"];
    match sql_type.strip_suffix("[]") {
        Some(element) if plain.contains(&element) => expression.to_owned(),
        Some(_) => format!("{expression}::text[]"),
        None if plain.contains(&base(sql_type)) => expression.to_owned(),
        None => format!("{expression}::text"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_json_would_round_are_text() {
        for sql_type in ["bigint", "numeric(10,2)", "uuid", "text", "\"JobStatus\"", "date"] {
            assert_eq!(cell("j.a", sql_type), "j.a::text", "{sql_type}");
        }
        for sql_type in ["integer", "double precision", "boolean", "jsonb", "integer[]"] {
            assert_eq!(cell("j.a", sql_type), "j.a", "{sql_type}");
        }
        assert_eq!(cell("j.a", "bigint[]"), "j.a::text[]");
    }
}
