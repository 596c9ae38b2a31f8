//! What `decide` is shown of each row: its columns and its reads, with a digest by which the act tells whether anything
//! changed since.

use std::collections::HashMap;

use salvage_core::candidate::RowToken;
use salvage_core::manifest::Read;
use salvage_core::source::ResolvedSource;
use sha2::{Digest, Sha256};

use super::session::{Mode, Session, Statement};
use super::{Postgres, sql};
use crate::ports::{Input, JobInputs, StoreFailure};

/// Reads a page of rows under one snapshot.
pub(super) async fn of_page(
    postgres: &Postgres,
    source: &ResolvedSource,
    tokens: &[&RowToken],
) -> Result<Vec<Option<JobInputs>>, StoreFailure> {
    let mut session =
        postgres.open_for(source, Mode::Read, format!("read the inputs of {}", source.name)).await?;
    let ids: Vec<&str> = tokens.iter().map(|token| token.id.as_str()).collect();
    let mut columns = columns(&mut session, source, &ids).await?;
    let mut rows = rows(&mut session, source, &ids).await?;
    session.commit().await?;
    let of_job = |token: &&RowToken| Some(joined(source, columns.remove(*token)?, &mut rows, &token.id));
    Ok(tokens.iter().map(of_job).collect())
}

/// The same of one row within a transaction that holds it and knows its columns: what an act compares.
pub(super) async fn of_locked(
    session: &mut Session,
    source: &ResolvedSource,
    id: &str,
    columns: String,
) -> Result<JobInputs, StoreFailure> {
    let mut rows = rows(session, source, &[id]).await?;
    Ok(joined(source, columns, &mut rows, id))
}

/// A read's objects, in its order, by the read's number and the job's id.
type Rows = HashMap<(usize, String), Vec<String>>;

fn joined(source: &ResolvedSource, columns: String, rows: &mut Rows, id: &str) -> JobInputs {
    let declared = source.declared.reads.iter().enumerate();
    let reads = declared.map(|(number, read)| input(read, rows.remove(&(number, id.to_owned())))).collect();
    job_inputs(columns, reads)
}

/// Each row's object by its token. A row without a time can be no candidate and is left out.
async fn columns(
    session: &mut Session,
    source: &ResolvedSource,
    ids: &[&str],
) -> Result<HashMap<RowToken, String>, StoreFailure> {
    type Row = (String, String, Option<String>, String, String);
    let rows: Vec<Row> = session.all(Statement::built(sql::job_objects(source)).bind(ids)).await?;
    let keyed = |(id, status, updated_at, xmin, object): Row| {
        Some((RowToken { id, status, updated_at: updated_at?, xmin }, object))
    };
    Ok(rows.into_iter().filter_map(keyed).collect())
}

async fn rows(session: &mut Session, source: &ResolvedSource, ids: &[&str]) -> Result<Rows, StoreFailure> {
    let mut rows = Rows::new();
    let Some(sql) = sql::read_objects(source) else { return Ok(rows) };
    let found: Vec<(i32, String, String)> = session.all(Statement::built(sql).bind(ids)).await?;
    for (number, id, object) in found {
        rows.entry((number.unsigned_abs() as usize, id)).or_default().push(object);
    }
    Ok(rows)
}

fn input(read: &Read, rows: Option<Vec<String>>) -> Input {
    let mut rows = rows.unwrap_or_default();
    let limit = usize::try_from(read.limit).unwrap_or(usize::MAX);
    let truncated = rows.len() > limit;
    rows.truncate(limit);
    Input { name: read.name.clone(), rows, truncated }
}

fn job_inputs(columns: String, reads: Vec<Input>) -> JobInputs {
    let mut digest = Sha256::new();
    // Each text with its length before it, so that no two inputs share a digest by where their texts are cut.
    let mut add = |text: &str| {
        digest.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(text);
    };
    add(&columns);
    for read in &reads {
        add(&read.name);
        add(if read.truncated { "truncated" } else { "whole" });
        add(&read.rows.len().to_string());
        read.rows.iter().for_each(|row| add(row));
    }
    let digest = hex(&digest.finalize());
    JobInputs { columns, reads, digest }
}

/// Bytes as hexadecimal text.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(limit: u32) -> Read {
        Read {
            name: "tracks".into(),
            table: "VideoTrack".into(),
            columns: vec!["kind".into()],
            match_column: "videoId".into(),
            job_column: "videoId".into(),
            order_by: vec!["position".into()],
            limit,
        }
    }

    fn digest(columns: &str, rows: &[&str], limit: u32) -> String {
        let rows = rows.iter().map(|row| (*row).to_owned()).collect();
        job_inputs(columns.to_owned(), vec![input(&declared(limit), Some(rows))]).digest
    }

    #[test]
    fn one_row_more_than_the_limit_is_truncated_and_the_limit_itself_is_not() {
        let rows = |count: usize| Some(vec!["{}".to_owned(); count]);
        assert!(!input(&declared(2), rows(2)).truncated);
        let more = input(&declared(2), rows(3));
        assert!(more.truncated && more.rows.len() == 2);
        assert_eq!(input(&declared(2), None).rows.len(), 0);
    }

    #[test]
    fn a_digest_tells_every_difference() {
        let all = [
            digest("{}", &["a", "b"], 5),
            digest("{}", &["ab"], 5),
            digest("{}", &["b", "a"], 5),
            digest("{}", &["a", "b"], 1),
            digest("{ }", &["a", "b"], 5),
        ];
        for (position, one) in all.iter().enumerate() {
            assert!(!all[position + 1..].contains(one), "two different inputs share a digest");
        }
        assert_eq!(all[0].len(), 64);
    }
}
