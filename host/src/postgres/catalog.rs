//! What the manifests name, joined with what the catalog has.
//!
//! One query reads the columns of every table that any manifest names; the rest is a comparison of values. A source that
//! does not fit costs only itself.

use std::collections::{BTreeMap, BTreeSet};

use salvage_core::act::ParentAct;
use salvage_core::grants::{quote, quote_table};
use salvage_core::manifest::{ParentChange, Source};
use salvage_core::source::{ColumnTypes, IdKind, ResolvedSource, SourceName, siblings};

use super::Postgres;
use super::session::{Mode, Session, Statement};
use super::sql::{self, TimeType, base};
use crate::ports::{LoadedDomain, Misfit, StoreFailure};

/// Names resolve as they do in a statement: an unqualified one by the search path.
const COLUMNS: &str = "SELECT w.name, c.relkind::text, a.attname::text, format_type(a.atttypid, a.atttypmod), \
    (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_enum AS e WHERE e.enumtypid = a.atttypid), \
    a.attnotnull \
    FROM unnest($1::text[], $2::text[]) AS w(name, quoted) \
    LEFT JOIN pg_class AS c ON c.oid = to_regclass(w.quoted) \
    LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
    ORDER BY w.name, a.attnum";

/// For the nearest name of one that is not there.
const TABLES: &str = "SELECT c.relname::text FROM pg_class AS c \
    WHERE c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid) AND c.relnamespace <> 'pg_catalog'::regnamespace";

/// The tables that manifests name, by the name they use.
#[derive(Debug, Default)]
struct Catalog {
    tables: BTreeMap<String, Table>,
    /// Names of all tables on the search path; read only if one is missing.
    visible: Vec<String>,
}

#[derive(Debug, Default)]
struct Table {
    /// `pg_class.relkind`.
    kind: String,
    columns: BTreeMap<String, Column>,
}

#[derive(Debug)]
struct Column {
    sql_type: String,
    /// If it is an enum.
    labels: Option<Vec<String>>,
    is_not_null: bool,
}

pub(super) async fn resolve(
    postgres: &Postgres,
    domains: &[LoadedDomain],
) -> Result<(Vec<ResolvedSource>, Vec<Misfit>), StoreFailure> {
    let mut session = postgres.open(Mode::Read, "read the catalog").await?;
    let catalog = read(&mut session, &tables_of(domains)).await?;
    session.commit().await?;
    let (mut sources, mut misfits) = (Vec::new(), Vec::new());
    for domain in domains {
        for declared in &domain.manifest.sources {
            match fit(domain, declared, &catalog) {
                Ok(source) => sources.push(source),
                Err(misfit) => misfits.push(misfit),
            }
        }
    }
    add_sibling_types(&mut sources, &catalog);
    Ok((sources, misfits))
}

async fn read(session: &mut Session, names: &BTreeSet<&str>) -> Result<Catalog, StoreFailure> {
    type Row = (String, Option<String>, Option<String>, Option<String>, Option<Vec<String>>, Option<bool>);
    // PostgreSQL's text holds no NUL, so a name with one names nothing.
    let names: Vec<&str> = names.iter().copied().filter(|name| !name.contains('\0')).collect();
    let quoted: Vec<String> = names.iter().map(|name| sql::table(name)).collect();
    let rows: Vec<Row> = session.all(Statement::fixed(COLUMNS).bind(&names).bind(quoted)).await?;
    let mut catalog = Catalog::default();
    for (name, kind, column, sql_type, labels, not_null) in rows {
        let Some(kind) = kind else { continue };
        let table = catalog.tables.entry(name).or_insert_with(|| Table { kind, ..Table::default() });
        if let (Some(column), Some(sql_type)) = (column, sql_type) {
            let is_not_null = not_null == Some(true);
            table.columns.insert(column, Column { sql_type, labels, is_not_null });
        }
    }
    if catalog.tables.len() < names.len() {
        let rows: Vec<(String,)> = session.all(Statement::fixed(TABLES)).await?;
        catalog.visible = rows.into_iter().map(|(name,)| name).collect();
    }
    Ok(catalog)
}

/// Every table that a manifest names.
fn tables_of(domains: &[LoadedDomain]) -> BTreeSet<&str> {
    let sources = domains.iter().flat_map(|domain| &domain.manifest.sources);
    sources
        .flat_map(|source| {
            let reads = source.reads.iter().map(|read| read.table.as_str());
            let parents = changes(source).map(|(_, change)| change.table.as_str());
            reads.chain(parents).chain([source.table.table.as_str()])
        })
        .collect()
}

/// A source's parent changes, each with its job type.
fn changes(source: &Source) -> impl Iterator<Item = (&str, &ParentChange)> {
    source.job_types.iter().flat_map(|job_type| {
        let changes = job_type.on_fail.iter().chain(&job_type.on_requeue);
        changes.map(|change| (job_type.name.as_str(), change))
    })
}

fn fit(domain: &LoadedDomain, declared: &Source, catalog: &Catalog) -> Result<ResolvedSource, Misfit> {
    let name = SourceName { domain: domain.manifest.domain.clone(), source: declared.name.clone() };
    let mut check = Check { catalog, types: ColumnTypes::default(), faults: Vec::new() };
    let id_kind = check.job_table(declared);
    for (job_type, change) in changes(declared) {
        check.parent(declared, job_type, change);
    }
    for read in &declared.reads {
        check.read(declared, read);
    }
    match id_kind {
        Some(id_kind) if check.faults.is_empty() => Ok(ResolvedSource {
            name,
            declared: declared.clone(),
            id_kind,
            types: check.types,
            standing: domain.standing,
            component_digest: domain.digest.clone(),
            database_role: domain.database_role.clone(),
        }),
        _ => Err(Misfit { source: name, faults: check.faults }),
    }
}

/// The types of the columns by which siblings of other sources map to a parent, so that their comparison uses an index.
fn add_sibling_types(sources: &mut [ResolvedSource], catalog: &Catalog) {
    let of_source = |source: &ResolvedSource| -> Vec<ParentAct> {
        let act = |(_, change): (&str, &ParentChange)| ParentAct {
            change: change.clone(),
            siblings: siblings(sources, change),
        };
        changes(&source.declared).map(act).collect()
    };
    let acts: Vec<Vec<ParentAct>> = sources.iter().map(of_source).collect();
    for (source, acts) in sources.iter_mut().zip(acts) {
        for sibling in acts.iter().flat_map(|act| &act.siblings) {
            let table = catalog.tables.get(&sibling.table);
            if let Some(column) = table.and_then(|table| table.columns.get(&sibling.job_column)) {
                source.types.insert(&sibling.table, &sibling.job_column, &column.sql_type);
            }
        }
    }
}

/// One source's comparison with the catalog; collects what it learns and what does not fit.
struct Check<'a> {
    catalog: &'a Catalog,
    types: ColumnTypes,
    faults: Vec<String>,
}

/// `pg_class.relkind` of what holds rows that can be locked: a table, a partitioned table.
const TABLE_KINDS: [&str; 2] = ["r", "p"];

impl<'a> Check<'a> {
    fn job_table(&mut self, source: &Source) -> Option<IdKind> {
        let mapping = &source.table;
        if !self.table(&mapping.table, "job table") {
            return None;
        }
        let table = mapping.table.as_str();
        let id = self.id(table, &mapping.id, "id column");
        self.status(table, &mapping.status, &[&mapping.queued, &mapping.processing, &mapping.failed]);
        self.time(table, &mapping.updated_at);
        if let Some(job_type) = &mapping.job_type {
            self.column(table, job_type, "type column");
        }
        if let Some(progress) = &mapping.progress {
            self.number(table, progress);
        }
        if let Some(error) = &mapping.error {
            self.text(table, error);
        }
        for extra in &mapping.extra_columns {
            self.column(table, extra, "extra column");
        }
        id
    }

    fn parent(&mut self, source: &Source, job_type: &str, change: &ParentChange) {
        if !self.table(&change.table, &format!("parent of job type {job_type}")) {
            return;
        }
        let table = change.table.as_str();
        self.id(table, &change.key, "key column");
        let statuses: Vec<&str> = change.from.iter().chain([&change.to]).map(String::as_str).collect();
        self.status(table, &change.status_column, &statuses);
        if let Some(error) = &change.error {
            self.text(table, error);
        }
        if let Some(updated_at) = &change.updated_at {
            self.time(table, updated_at);
        }
        self.job_column(source, &change.job_column);
    }

    fn read(&mut self, source: &Source, read: &salvage_core::manifest::Read) {
        let Some(_) = self.existing(&read.table, &format!("read {:?}", read.name)) else { return };
        for column in read.columns.iter().chain([&read.match_column]).chain(&read.order_by) {
            self.column(&read.table, column, &format!("read {:?}", read.name));
        }
        self.job_column(source, &read.job_column);
    }

    fn job_column(&mut self, source: &Source, column: &str) {
        if self.catalog.tables.contains_key(&source.table.table) {
            self.column(&source.table.table, column, "job column");
        }
    }

    /// A table whose rows can be locked and written.
    fn table(&mut self, name: &str, role: &str) -> bool {
        let Some(table) = self.existing(name, role) else { return false };
        let is_one = TABLE_KINDS.contains(&table.kind.as_str());
        if !is_one {
            self.fault(format!(
                "{} ({role}) must be a table or a partitioned table, found a {}",
                quote_table(name),
                relation(&table.kind)
            ));
        }
        is_one
    }

    fn existing(&mut self, name: &str, role: &str) -> Option<&'a Table> {
        let table = self.catalog.tables.get(name);
        if table.is_none() {
            let near = did_you_mean(name, self.catalog.visible.iter().map(String::as_str));
            self.fault(format!("table {} ({role}) does not exist{near}", quote_table(name)));
        }
        table
    }

    /// A column that exists; its type is remembered.
    fn column(&mut self, table: &str, name: &str, role: &str) -> Option<&'a Column> {
        let columns = &self.catalog.tables.get(table)?.columns;
        let column = columns.get(name);
        match column {
            Some(column) => {
                self.types.insert(table, name, &column.sql_type);
                if column.is_not_null {
                    self.types.insert_not_null(table, name);
                }
            }
            None => {
                let near = did_you_mean(name, columns.keys().map(String::as_str));
                self.fault(format!(
                    "table {} has no column {} ({role}){near}",
                    quote_table(table),
                    quote(name)
                ));
            }
        }
        column
    }

    fn id(&mut self, table: &str, name: &str, role: &str) -> Option<IdKind> {
        let column = self.column(table, name, role)?;
        let kind = sql::id_kind(&column.sql_type);
        self.expect(kind.is_some(), table, name, "text, varchar, uuid, bigint or integer");
        kind
    }

    fn time(&mut self, table: &str, name: &str) {
        if let Some(column) = self.column(table, name, "updated-at column") {
            let is_one = TimeType::parse(&column.sql_type).is_some();
            self.expect(is_one, table, name, "timestamp or timestamptz");
        }
    }

    fn text(&mut self, table: &str, name: &str) {
        if let Some(column) = self.column(table, name, "error column") {
            let is_one = ["text", "character varying"].contains(&base(&column.sql_type));
            self.expect(is_one, table, name, "text or varchar");
        }
    }

    fn number(&mut self, table: &str, name: &str) {
        let numbers = ["smallint", "integer", "bigint", "real", "double precision", "numeric"];
        if let Some(column) = self.column(table, name, "progress column") {
            self.expect(numbers.contains(&base(&column.sql_type)), table, name, "a number");
        }
    }

    fn status(&mut self, table: &str, name: &str, statuses: &[&str]) {
        let Some(column) = self.column(table, name, "status column") else { return };
        let Some(labels) = &column.labels else {
            let is_one = ["text", "character varying"].contains(&base(&column.sql_type));
            return self.expect(is_one, table, name, "text, varchar or an enum");
        };
        for status in statuses.iter().filter(|status| !labels.iter().any(|label| label == *status)) {
            let near = did_you_mean(status, labels.iter().map(String::as_str));
            self.fault(format!(
                "enum {} of {}.{} has no status {status}, it has {}{near}",
                column.sql_type,
                quote_table(table),
                quote(name),
                labels.join(", ")
            ));
        }
    }

    /// Notes a fault, once: job types often share a parent.
    fn fault(&mut self, fault: String) {
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// Notes a column whose type is not the expected one.
    fn expect(&mut self, is_so: bool, table: &str, name: &str, expected: &str) {
        if !is_so {
            let found = self.types.get(table, name).unwrap_or_default();
            let fault = format!("{}.{} must be {expected}, found {found}", quote_table(table), quote(name));
            self.fault(fault);
        }
    }
}

/// What `pg_class.relkind` stands for.
fn relation(kind: &str) -> &str {
    match kind {
        "v" => "view",
        "m" => "materialized view",
        "f" => "foreign table",
        "i" | "I" => "index",
        "S" => "sequence",
        "c" => "composite type",
        other => other,
    }
}

/// The nearest name there is, as the end of a sentence; nothing if none is near.
fn did_you_mean<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> String {
    let distance = |other: &str| strsim::osa_distance(&name.to_lowercase(), &other.to_lowercase());
    let nearest = names.map(|other| (distance(other), other)).min();
    match nearest {
        Some((distance, nearest)) if distance <= name.chars().count() / 3 + 1 => {
            format!("; did you mean {}?", quote(nearest))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use salvage_core::manifest::{HandlerManifest, IdTemplate, JobType, QueueRule, Read, TableMapping};
    use salvage_core::source::Standing;

    fn table(kind: &str, columns: &[(&str, &str)]) -> Table {
        let column = |(name, sql_type): &(&str, &str)| {
            let labels = sql_type
                .ends_with("Status\"")
                .then(|| ["QUEUED", "PROCESSING", "FAILED", "GENERATING"].map(str::to_owned).to_vec());
            ((*name).to_owned(), Column { sql_type: (*sql_type).to_owned(), labels, is_not_null: false })
        };
        Table { kind: kind.to_owned(), columns: columns.iter().map(column).collect() }
    }

    fn catalog() -> Catalog {
        let jobs = [
            ("id", "text"),
            ("deckId", "text"),
            ("status", "\"JobStatus\""),
            ("type", "text"),
            ("progress", "integer"),
            ("error", "text"),
            ("updatedAt", "timestamp(3) without time zone"),
        ];
        let decks = [("id", "text"), ("status", "\"DeckStatus\""), ("error", "text")];
        Catalog {
            tables: BTreeMap::from([
                ("SlideJob".to_owned(), table("r", &jobs)),
                ("SlideDeck".to_owned(), table("r", &decks)),
                ("Jobs".to_owned(), table("v", &jobs)),
            ]),
            visible: vec!["SlideJob".to_owned(), "SlideDeck".to_owned()],
        }
    }

    fn source() -> Source {
        let parent = ParentChange {
            table: "SlideDeck".into(),
            key: "id".into(),
            job_column: "deckId".into(),
            status_column: "status".into(),
            from: vec!["GENERATING".into()],
            to: "FAILED".into(),
            error: Some("error".into()),
            updated_at: None,
        };
        Source {
            name: "generation".into(),
            table: TableMapping {
                table: "SlideJob".into(),
                id: "id".into(),
                status: "status".into(),
                updated_at: "updatedAt".into(),
                job_type: Some("type".into()),
                progress: Some("progress".into()),
                error: Some("error".into()),
                extra_columns: vec!["deckId".into()],
                queued: "QUEUED".into(),
                processing: "PROCESSING".into(),
                failed: "FAILED".into(),
            },
            job_types: vec![JobType {
                name: "OUTLINE".into(),
                stale_after_queued: None,
                stale_after_processing: None,
                restart_safe: true,
                on_fail: Some(parent),
                on_requeue: None,
            }],
            queues: vec![QueueRule::new("slides", IdTemplate::parse("{id}").expect("a rule"), "jobId")],
            reads: vec![Read {
                name: "deck".into(),
                table: "SlideDeck".into(),
                columns: vec!["id".into()],
                match_column: "id".into(),
                job_column: "deckId".into(),
                order_by: vec!["id".into()],
                limit: 1,
            }],
        }
    }

    fn fit_one(declared: Source) -> Result<ResolvedSource, Vec<String>> {
        let domain = LoadedDomain {
            manifest: HandlerManifest {
                domain: "slides".into(),
                description: String::new(),
                sources: vec![declared],
            },
            standing: Standing::Active,
            digest: "d".into(),
            database_role: None,
            capture: salvage_core::capture::CapturePolicy::default(),
        };
        fit(&domain, &domain.manifest.sources[0], &catalog()).map_err(|misfit| misfit.faults)
    }

    fn check_fault(change: impl FnOnce(&mut Source), expected: &str) {
        let mut declared = source();
        change(&mut declared);
        let faults = fit_one(declared).expect_err("a misfit");
        assert!(faults.iter().any(|fault| fault == expected), "{faults:#?} lacks {expected:?}");
    }

    #[test]
    fn a_source_that_fits_has_the_types_of_all_its_columns() {
        let resolved = fit_one(source()).expect("a fit");
        assert_eq!(resolved.id_kind, IdKind::Text);
        assert_eq!(resolved.types.get("SlideJob", "updatedAt"), Some("timestamp(3) without time zone"));
        assert_eq!(resolved.types.get("SlideDeck", "status"), Some("\"DeckStatus\""));
        assert_eq!(resolved.types.get("SlideJob", "deckId"), Some("text"));
    }

    #[test]
    fn what_does_not_fit_is_named_with_what_was_expected_and_found() {
        check_fault(
            |source| source.table.table = "SlideJobs".into(),
            "table \"SlideJobs\" (job table) does not exist; did you mean \"SlideJob\"?",
        );
        check_fault(
            |source| source.table.table = "Jobs".into(),
            "\"Jobs\" (job table) must be a table or a partitioned table, found a view",
        );
        check_fault(
            |source| source.table.updated_at = "updated_at".into(),
            "table \"SlideJob\" has no column updated_at (updated-at column); did you mean \"updatedAt\"?",
        );
        check_fault(
            |source| source.table.updated_at = "type".into(),
            "\"SlideJob\".type must be timestamp or timestamptz, found text",
        );
        check_fault(
            |source| source.table.id = "progress2".into(),
            "table \"SlideJob\" has no column progress2 (id column); did you mean progress?",
        );
        check_fault(
            |source| source.table.status = "progress".into(),
            "\"SlideJob\".progress must be text, varchar or an enum, found integer",
        );
        check_fault(
            |source| source.table.queued = "QUEUE".into(),
            "enum \"JobStatus\" of \"SlideJob\".status has no status QUEUE, it has QUEUED, PROCESSING, FAILED, \
             GENERATING; did you mean \"QUEUED\"?",
        );
    }

    #[test]
    fn parents_and_reads_are_checked_as_well() {
        let change = |source: &mut Source, with: fn(&mut ParentChange)| {
            source.job_types[0].on_fail.iter_mut().for_each(with);
        };
        check_fault(
            |source| change(source, |parent| parent.to = "DEAD".into()),
            "enum \"DeckStatus\" of \"SlideDeck\".status has no status DEAD, it has QUEUED, PROCESSING, FAILED, \
             GENERATING",
        );
        check_fault(
            |source| change(source, |parent| parent.table = "Deck".into()),
            "table \"Deck\" (parent of job type OUTLINE) does not exist",
        );
        check_fault(
            |source| source.reads[0].columns.push("titel".into()),
            "table \"SlideDeck\" has no column titel (read \"deck\")",
        );
        check_fault(
            |source| source.reads[0].job_column = "deck".into(),
            "table \"SlideJob\" has no column deck (job column); did you mean \"deckId\"?",
        );
    }
}
