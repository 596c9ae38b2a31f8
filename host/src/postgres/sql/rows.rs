//! Statements that read job rows, and the pieces that every statement about a job row is made of.

use salvage_core::candidate::LiveStatus;
use salvage_core::source::ResolvedSource;

use crate::ports::Group;

use super::{Text, TimeType, column, id_type, identifier, literal, literals, table, time_type};

/// A job table under the alias `j`.
pub(super) struct Job<'a> {
    source: &'a ResolvedSource,
    pub(super) time: TimeType,
}

impl<'a> Job<'a> {
    pub(super) fn of(source: &'a ResolvedSource) -> Self {
        let mapping = &source.declared.table;
        Self { source, time: time_type(source.types.get(&mapping.table, &mapping.updated_at)) }
    }

    /// The table with its alias, for FROM and UPDATE.
    pub(super) fn table(&self) -> String {
        format!("{} AS j", table(&self.source.declared.table.table))
    }

    pub(super) fn id(&self) -> String {
        column("j", &self.source.declared.table.id)
    }

    pub(super) fn status(&self) -> String {
        column("j", &self.source.declared.table.status)
    }

    pub(super) fn updated_at(&self) -> String {
        column("j", &self.source.declared.table.updated_at)
    }

    /// `updatedAt` as a `timestamp` that reads UTC.
    pub(super) fn utc(&self) -> String {
        self.time.utc(&self.updated_at())
    }

    /// A type column compared as text, so that an enum without that label is no error; nothing if there is no such column.
    pub(super) fn and_of_its_types(&self) -> String {
        let types = self.source.declared.job_types.iter().map(|job_type| &job_type.name);
        match &self.source.declared.table.job_type {
            Some(name) => format!(" AND {}::text IN ({})", column("j", name), literals(types)),
            None => String::new(),
        }
    }

    /// Exactly the predicate of the live-row index, or the planner would not use it.
    pub(super) fn is_live(&self) -> String {
        let mapping = &self.source.declared.table;
        format!("{} IN ({})", self.status(), literals([&mapping.queued, &mapping.processing]))
    }

    /// A parameter as an id of this table.
    pub(super) fn an_id(&self, parameter: &str) -> String {
        format!("{parameter}::text::{}", id_type(self.source.id_kind))
    }

    /// A parameter that holds many ids.
    pub(super) fn many_ids(&self, parameter: &str) -> String {
        format!("{parameter}::text[]::{}[]", id_type(self.source.id_kind))
    }

    /// The row's token as four columns of text: id, status, updatedAt in UTC, xmin. `updatedAt` is NULL if not finite.
    pub(super) fn token(&self) -> String {
        format!(
            "{id}::text, {status}::text, CASE WHEN isfinite({at}) THEN {utc}::text END, j.xmin::text",
            id = self.id(),
            status = self.status(),
            at = self.updated_at(),
            utc = self.utc(),
        )
    }

    /// Whether the row still has the token bound as `$1` to `$4`, in the order of [`Self::token`].
    pub(super) fn has_token(&self) -> String {
        format!(
            "{id} = {an_id} AND {status}::text = $2 AND {utc} = $3::text::timestamp AND j.xmin = $4::text::xid",
            id = self.id(),
            an_id = self.an_id("$1"),
            status = self.status(),
            utc = self.utc(),
        )
    }
}

/// A page of live rows: token, type. `$1`: the cutoff, RFC 3339; `$2`, if `is_first` is not set: the id
/// after which it begins.
///
/// NULL and infinite times come along: nobody can say how old such a row is, so it must be reported.
pub(in super::super) fn live_rows(source: &ResolvedSource, is_first: bool, limit: u32) -> Text {
    let job = Job::of(source);
    let at = job.updated_at();
    let job_type = match &source.declared.table.job_type {
        Some(name) => format!("{}::text", column("j", name)),
        None => "NULL::text".to_owned(),
    };
    let after = if is_first { String::new() } else { format!(" AND {} > {}", job.id(), job.an_id("$2")) };
    Text(format!(
        "SELECT {token}, {job_type} \
         FROM {table} \
         WHERE {live}{types} AND ({at} < {cutoff} OR {at} IS NULL OR {at} = 'infinity'){after} \
         ORDER BY {id} LIMIT {limit}",
        token = job.token(),
        table = job.table(),
        live = job.is_live(),
        types = job.and_of_its_types(),
        cutoff = job.time.instant("$1"),
        id = job.id(),
    ))
}

/// The oldest rows of each group: token, type. `$1`, `$2` and so on: where each group's times begin and end, RFC 3339.
pub(in super::super) fn young_rows(source: &ResolvedSource, groups: &[Group], limit: u32) -> Text {
    let job = Job::of(source);
    let (mapping, at) = (&source.declared.table, job.updated_at());
    let of_group = |(place, group): (usize, &Group)| {
        let status = match group.status {
            LiveStatus::Queued => &mapping.queued,
            LiveStatus::Processing => &mapping.processing,
        };
        let (job_type, of_type) = match &mapping.job_type {
            Some(name) => {
                let name = column("j", name);
                (format!("{name}::text"), format!(" AND {name}::text = {}", literal(&group.job_type)))
            }
            None => ("NULL::text".to_owned(), String::new()),
        };
        format!(
            "(SELECT {token}, {job_type} FROM {table} WHERE {is_status} = {status}{of_type} AND {at} >= {from} \
             AND {at} < {before} ORDER BY {at} LIMIT {limit})",
            token = job.token(),
            table = job.table(),
            is_status = job.status(),
            status = literal(status),
            from = job.time.instant(&format!("${}", 2 * place + 1)),
            before = job.time.instant(&format!("${}", 2 * place + 2)),
        )
    };
    let selects: Vec<String> = groups.iter().enumerate().map(of_group).collect();
    Text(selects.join(" UNION ALL "))
}

/// Prepares [`live_rows`] as a statement of this session, and asks for the plan of a later page that serves every cutoff
/// and every id, which is the plan that a long-lived connection ends up with.
pub(in super::super) fn explain_live_rows(source: &ResolvedSource, limit: u32) -> [Text; 4] {
    let Text(select) = live_rows(source, false, limit);
    // Not the values but their being parameters decides the plan; an id that every kind of column can hold is NULL.
    [
        Text("SET LOCAL plan_cache_mode = force_generic_plan".to_owned()),
        Text(format!("PREPARE salvage_live_rows (text, text) AS {select}")),
        Text("EXPLAIN (COSTS OFF) EXECUTE salvage_live_rows ('2000-01-01T00:00:00Z', NULL)".to_owned()),
        Text("DEALLOCATE salvage_live_rows".to_owned()),
    ]
}

/// Live rows; of those, of an undeclared type (`$1`: the declared ones); of those, written after `$2`, RFC 3339.
pub(in super::super) fn census(source: &ResolvedSource) -> Text {
    let job = Job::of(source);
    let undeclared = match &source.declared.table.job_type {
        Some(name) => {
            let name = column("j", name);
            format!("{name} IS NULL OR {name}::text <> ALL($1::text[])")
        }
        None => "false".to_owned(),
    };
    Text(format!(
        "SELECT count(*), count(*) FILTER (WHERE {undeclared}), count(*) FILTER (WHERE {at} > {limit}) \
         FROM {table} WHERE {live}",
        at = job.updated_at(),
        limit = job.time.instant("$2"),
        table = job.table(),
        live = job.is_live(),
    ))
}

/// The places, from 1, of those ids in `$1` that are no live row of the source's types, as one array. Joined, not
/// compared with `ANY`, so that a hash will do.
pub(in super::super) fn not_live_among(source: &ResolvedSource) -> Text {
    let job = Job::of(source);
    Text(format!(
        "SELECT coalesce(array_agg(w.place), '{{}}') FROM unnest($1::text[]) WITH ORDINALITY AS w(id, place) \
         WHERE NOT EXISTS (SELECT FROM {table} WHERE {live}{types} AND {id} = {an_id})",
        id = job.id(),
        table = job.table(),
        live = job.is_live(),
        types = job.and_of_its_types(),
        an_id = job.an_id("w.id"),
    ))
}

/// Those of the ids in `$1` that are rows of the source's types.
pub(in super::super) fn existing(source: &ResolvedSource) -> Text {
    let job = Job::of(source);
    Text(format!(
        "SELECT {id}::text FROM {table} WHERE {id} = ANY({ids}){types}",
        table = job.table(),
        id = job.id(),
        ids = job.many_ids("$1"),
        types = job.and_of_its_types(),
    ))
}

/// `name = expression` of an UPDATE's SET.
pub(super) fn set(name: &str, expression: &str) -> String {
    format!("{} = {expression}", identifier(name))
}
