//! The host's rules, as far as they can be held against a manifest, a case and a decision alone.
//!
//! What is demanded of a decision is in [`host_rules`], which the host compiles, too. Each function returns one sentence per fault. Whether tables and columns exist, and whether they are granted, only
//! the host can tell.

use super::declared::Declared;
use super::file::Case;
use crate::{Decision, Manifest, Requeue, Source, host_rules};
use serde_json::Value;
use std::collections::BTreeSet;

pub(super) fn manifest_faults(manifest: &Manifest) -> Vec<String> {
    let mut faults = Vec::new();
    if manifest.domain.is_empty() {
        faults.push("the domain has no name".to_owned());
    }
    if manifest.sources.is_empty() {
        faults.push("no source is declared".to_owned());
    }
    faults.extend(twice("source", manifest.sources.iter().map(|source| source.name)));
    for source in manifest.sources {
        faults.extend(
            source_faults(source).into_iter().map(|fault| format!("source `{}`: {fault}", source.name)),
        );
    }
    faults
}

fn source_faults(source: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    if source.job_types.is_empty() {
        faults.push("no job type is declared".to_owned());
    }
    if source.table.job_type.is_none() && source.job_types.len() > 1 {
        faults.push("several job types, but the table has no type column".to_owned());
    }
    if source.queues.is_empty() {
        faults.push("no queue is declared".to_owned());
    }
    faults.extend(twice("job type", source.job_types.iter().map(|job_type| job_type.name)));
    faults.extend(twice("queue", source.queues.iter().map(|queue| queue.name)));
    faults.extend(twice("read", source.reads.iter().map(|read| read.name)));
    for queue in source.queues {
        if queue.job_id.matches("{id}").count() != 1 {
            faults
                .push(format!("queue `{}`: job id `{}` must contain {{id}} once", queue.name, queue.job_id));
        }
        if queue.payload_key.is_empty() {
            faults.push(format!("queue `{}`: no payload key", queue.name));
        }
    }
    for read in source.reads {
        if read.columns.is_empty() {
            faults.push(format!("read `{}`: no column", read.name));
        }
        if read.limit == 0 {
            faults.push(format!("read `{}`: limit is 0", read.name));
        }
        if read.limit > 1 && read.order_by.is_empty() {
            faults.push(format!("read `{}`: several rows, but no order", read.name));
        }
    }
    faults
}

pub(super) fn case_faults(case: &Case, declared: &Declared<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    let job = &case.job;
    if !declared.job_types.contains(&job.job_type.as_str()) {
        faults.push(format!("source `{}` declares no job type `{}`", declared.source, job.job_type));
    }
    if !declared.live.contains(&job.status.as_str()) {
        faults.push(format!("a row with status `{}` is no candidate", job.status));
    }
    let shown: BTreeSet<&str> =
        declared.mapped_columns().chain(declared.extra_columns.iter().copied()).collect();
    for column in job.columns.keys().filter(|column| !shown.contains(column.as_str())) {
        faults.push(format!("column `{column}` of the job is not declared"));
    }
    for column in declared.extra_columns.iter().filter(|column| !job.columns.contains_key(**column)) {
        faults.push(format!("column `{column}` of the job is missing"));
    }
    faults.extend(input_faults(case, declared));
    faults
}

fn input_faults(case: &Case, source: &Declared<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    for name in case.inputs.keys() {
        if !source.reads.iter().any(|read| read.name == name) {
            faults.push(format!("input `{name}` is not declared"));
        }
    }
    for read in &source.reads {
        let Some(input) = case.inputs.get(read.name) else {
            faults.push(format!("input `{}` is missing", read.name));
            continue;
        };
        if input.rows.len() > read.limit as usize {
            faults.push(format!("input `{}`: more rows than its limit, {}", read.name, read.limit));
        }
        let declared: BTreeSet<&str> = read.columns.iter().copied().collect();
        for (index, row) in input.rows.iter().enumerate() {
            if row.keys().map(String::as_str).collect::<BTreeSet<_>>() != declared {
                let columns = read.columns.join(", ");
                faults.push(format!(
                    "input `{}`, row {}: its columns must be {columns}",
                    read.name,
                    index + 1
                ));
            }
        }
    }
    faults
}

pub(super) fn decision_faults(case: &Case, source: &Source, decision: &Decision) -> Vec<String> {
    match decision {
        Decision::Requeue(requeue) => requeue_faults(case, source, requeue),
        Decision::Fail(reason) => host_rules::reason_fault("fail", reason).into_iter().collect(),
        Decision::Hold(reason) => host_rules::reason_fault("hold", reason).into_iter().collect(),
    }
}

fn requeue_faults(case: &Case, source: &Source, requeue: &Requeue) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, input) in &case.inputs {
        if input.truncated {
            faults.push(format!("a requeue made on the truncated input `{name}` is refused"));
        }
    }
    if requeue.name.is_empty() {
        faults.push("the requeue has no job name".to_owned());
    }
    match source.queues.iter().find(|queue| queue.name == requeue.queue) {
        None => faults.push(format!("queue `{}` is not declared", requeue.queue)),
        Some(queue) => {
            faults.extend(host_rules::payload_fault(&requeue.data, queue.payload_key, &case.job.id));
        }
    }
    if let Ok(Value::Object(options)) = serde_json::to_value(requeue.options) {
        faults.extend(host_rules::option_faults(&options));
    }
    faults
}

fn twice<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    names
        .filter(|name| !seen.insert(*name))
        .map(|name| format!("{what} `{name}` is declared twice"))
        .collect()
}
