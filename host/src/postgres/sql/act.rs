//! Statements that lock and write. All but the sibling's check repeat the row's whole token.

use salvage_core::act::{Change, ParentAct};
use salvage_core::manifest::ParentChange;
use salvage_core::source::{IdKind, ResolvedSource, Sibling};

use super::inputs::job_object;
use super::rows::{Job, set};
use super::{Text, column, id_kind, id_type, identifier, literal, literals, table, time_type};

/// Locks the row if it still has the token `$1` to `$4` and nobody holds it: the partition it is in, the parent's key, and
/// the row's object, which is that of the token, for the row that was read is the row that was locked.
pub(in super::super) fn lock_job(source: &ResolvedSource, parent: Option<&ParentAct>) -> Text {
    let job = Job::of(source);
    let key = match parent {
        Some(parent) => format!("{}::text", column("j", &parent.change.job_column)),
        None => "NULL::text".to_owned(),
    };
    Text(format!(
        "SELECT j.tableoid::text, {key}, {object} FROM {table} WHERE {token} FOR NO KEY UPDATE SKIP LOCKED",
        object = job_object(source),
        table = job.table(),
        token = job.has_token(),
    ))
}

/// The token of the row with id `$1` as it is now.
pub(in super::super) fn found_row(source: &ResolvedSource) -> Text {
    let job = Job::of(source);
    Text(format!(
        "SELECT {token} FROM {table} WHERE {id} = {an_id}",
        token = job.token(),
        table = job.table(),
        id = job.id(),
        an_id = job.an_id("$1"),
    ))
}

/// Locks the parent with key `$1`: whether its status is one to change from.
pub(in super::super) fn lock_parent(change: &ParentChange, key: IdKind) -> Text {
    Text(format!(
        "SELECT {status}::text IN ({from}) FROM {table} AS p WHERE {is_it} FOR NO KEY UPDATE",
        status = column("p", &change.status_column),
        from = literals(&change.from),
        table = table(&change.table),
        is_it = is_parent(change, key),
    ))
}

/// Whether another live row of any source maps to the parent column of the parent with key `$1`. `$2` and `$3` are the
/// job's own row: its partition and its id.
pub(in super::super) fn live_sibling(source: &ResolvedSource, parent: &ParentAct, key: IdKind) -> Text {
    let exists: Vec<String> = parent.siblings.iter().map(|sibling| is_live(source, sibling, key)).collect();
    let exists = if exists.is_empty() { "false".to_owned() } else { exists.join(" OR ") };
    Text(format!("SELECT {exists}"))
}

fn is_live(source: &ResolvedSource, sibling: &Sibling, key: IdKind) -> String {
    let theirs = column("s", &sibling.job_column);
    let is_alike = source.types.get(&sibling.table, &sibling.job_column).and_then(id_kind) == Some(key);
    let maps_to_it = if is_alike {
        format!("{theirs} = $1::text::{}", id_type(key))
    } else {
        format!("{theirs}::text = $1")
    };
    let of_types = match &sibling.types {
        Some((name, types)) => format!(" AND {}::text IN ({})", column("s", name), literals(types)),
        None => String::new(),
    };
    format!(
        "EXISTS (SELECT 1 FROM {table} AS s WHERE {maps_to_it} AND {status} IN ({live}){of_types} \
         AND NOT (s.tableoid = $2::text::oid AND {id}::text = $3))",
        table = table(&sibling.table),
        status = column("s", &sibling.status_column),
        live = literals(&sibling.live),
        id = column("s", &sibling.id),
    )
}

/// Writes the row with the token `$1` to `$4`, and returns its new status. `$5` is the reason of a fail.
pub(in super::super) fn update_job(source: &ResolvedSource, change: &Change) -> Text {
    let job = Job::of(source);
    let mapping = &source.declared.table;
    let status = match change {
        Change::Requeue { .. } => &mapping.queued,
        Change::Fail { .. } => &mapping.failed,
    };
    let mut sets = vec![
        set(&mapping.status, &literal(status)),
        set(&mapping.updated_at, &job.time.later(&job.updated_at())),
    ];
    if let Some(error) = &mapping.error {
        sets.push(set(error, &reason(source, change, "$5", (&mapping.table, error))));
    }
    if let (Change::Requeue { .. }, Some(progress)) = (change, &mapping.progress) {
        sets.push(set(progress, "0"));
    }
    Text(format!(
        "UPDATE {table} SET {sets} WHERE {token} RETURNING {status}::text",
        table = job.table(),
        sets = sets.join(", "),
        token = job.has_token(),
        status = job.status(),
    ))
}

/// Writes the parent with key `$1` if its status is one to change from. `$2` is the reason of a fail.
pub(in super::super) fn update_parent(
    source: &ResolvedSource,
    change: &Change,
    parent: &ParentChange,
    key: IdKind,
) -> Text {
    let mut sets = vec![set(&parent.status_column, &literal(&parent.to))];
    if let Some(error) = &parent.error {
        sets.push(set(error, &reason(source, change, "$2", (&parent.table, error))));
    }
    if let Some(updated_at) = &parent.updated_at {
        let time = time_type(source.types.get(&parent.table, updated_at));
        sets.push(set(updated_at, &time.later(&column("p", updated_at))));
    }
    Text(format!(
        "UPDATE {table} AS p SET {sets} WHERE {is_it} AND {status}::text IN ({from})",
        table = table(&parent.table),
        sets = sets.join(", "),
        is_it = is_parent(parent, key),
        status = column("p", &parent.status_column),
        from = literals(&parent.from),
    ))
}

fn is_parent(change: &ParentChange, key: IdKind) -> String {
    format!("p.{} = $1::text::{}", identifier(&change.key), id_type(key))
}

/// What a column for errors receives: nothing after a requeue, where nothing is NULL if it may be. The cast cuts a reason
/// to the length of a `varchar(n)`.
fn reason(source: &ResolvedSource, change: &Change, parameter: &str, (table, name): (&str, &str)) -> String {
    match change {
        Change::Requeue { .. } if source.types.is_not_null(table, name) => literal(""),
        Change::Requeue { .. } => "NULL".to_owned(),
        Change::Fail { .. } => {
            format!("{parameter}::text::{}", source.types.get(table, name).unwrap_or("text"))
        }
    }
}
