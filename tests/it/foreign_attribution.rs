//! Whose entries are, on systems we did not write: a declaration that the queues do not confirm leads to no act.

use anyhow::{Context, Result, ensure};
use salvage::command::accept::{self, Operator};
use salvage_core::report::Report;
use salvage_tests::foreign::{Foreign, Handler, jobs_table, queue_rule};
use salvage_tests::services::Redis;
use salvage_tests::system::{job, source, story};
use serde_json::{Value, json};

const ME: Operator<'static> = Operator::sure("the operator");

/// Rows of two hours' age and the entries their producer made, under ids that BullMQ counted out.
async fn produced(
    handler: &Handler,
    id_type: &str,
    ids: &[String],
    name: &str,
    payload: impl Fn(&str) -> Value,
) -> Result<Foreign> {
    let foreign = Foreign::with(&jobs_table(id_type), handler).await?;
    foreign.rows(ids.iter().cloned(), "QUEUED", 120).await?;
    let bullmq = foreign.bullmq().await?;
    for id in ids {
        bullmq.add("jobs", name, payload(id), json!({})).await?;
    }
    bullmq.close().await?;
    Ok(foreign)
}

fn text_ids(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("row-{n}x")).collect()
}

fn number_ids(count: usize) -> Vec<String> {
    (1..=count).map(|n| (1_000 + n).to_string()).collect()
}

fn jobs_rule(names: &[&str]) -> Handler {
    Handler::of(&[queue_rule("jobs", "job-{id}", names)])
}

/// What every pass must have left: no second entry of any job, and each row as it was.
async fn nothing_was_done(foreign: &Foreign, report: &Report, rows: usize) -> Result<()> {
    let counts = source(report, "foreign/jobs");
    ensure!(counts.unknown as usize == rows && counts.absent == 0, "{report:#?}");
    ensure!(foreign.entries("jobs").await? == rows, "{} entries", foreign.entries("jobs").await?);
    let queued = foreign.column("SELECT id::text FROM jobs WHERE status = 'QUEUED'").await?;
    ensure!(queued.len() == rows, "{queued:?}");
    Ok(())
}

/// F1.
#[tokio::test]
async fn payloads_of_another_shape_are_no_absence_whatever_was_accepted() -> Result<()> {
    type Shape = fn(&str) -> Value;
    let shapes: [(&str, Shape); 5] = [
        ("wrapped", |id| json!({ "payload": { "jobId": id } })),
        ("a list", |id| json!([{ "jobId": id }])),
        ("JSON in a text", |id| json!({ "body": json!({ "jobId": id }).to_string() })),
        ("another key", |id| json!({ "renderId": id, "page": 1 })),
        ("nothing but the id", |id| json!(id)),
    ];
    for (what, shape) in shapes {
        let ids = text_ids(30);
        let foreign = produced(&jobs_rule(&["work"]), "text", &ids, "work", shape).await?;
        foreign.pass().await?;
        accept::queues(&foreign.host, &foreign.settings, &[], ME).await?;
        for _ in 0..2 {
            let report = foreign.pass().await?;
            nothing_was_done(&foreign, &report, ids.len()).await.context(what)?;
            let why = job(&report, &ids[0]).sighting.why.clone().unwrap_or_default();
            ensure!(
                why.contains("holds this row's id") && why.contains("\"jobs\" (job \"work\")"),
                "{what}: {why}"
            );
        }
    }
    Ok(())
}

/// F1, where ids are numbers, which stand in payloads for many reasons, and the job's name is not one of the manifest's.
/// Nothing confirms the declaration then, and the operator's word alone does not stand against what the queue shows.
#[tokio::test]
async fn numbers_in_foreign_entries_count_as_long_as_nothing_confirms_the_declaration() -> Result<()> {
    let ids = number_ids(30);
    let shape = |id: &str| json!({ "send": { "id": id.parse::<i64>().unwrap_or(0) } });
    let foreign = produced(&jobs_rule(&["work"]), "bigint", &ids, "process", shape).await?;
    foreign.pass().await?;
    accept::queues(&foreign.host, &foreign.settings, &[], ME).await?;
    let report = foreign.pass().await?;
    nothing_was_done(&foreign, &report, ids.len()).await?;
    let why = job(&report, &ids[0]).sighting.why.clone().unwrap_or_default();
    ensure!(why.contains("at `send.id`"), "{why}");
    Ok(())
}

/// F1, where the entries tell nothing at all: the reason names one, its job name and what its payload has.
#[tokio::test]
async fn entries_that_nobody_can_attribute_keep_their_queue_in_doubt() -> Result<()> {
    let ids = number_ids(9);
    let foreign =
        produced(&jobs_rule(&[]), "bigint", &ids, "process", |_| json!({ "to": "x", "n": { "a": 1 } }))
            .await?;
    foreign.pass().await?;
    accept::queues(&foreign.host, &foreign.settings, &[], ME).await?;
    let report = foreign.pass().await?;
    nothing_was_done(&foreign, &report, ids.len()).await?;
    let why = job(&report, &ids[0]).sighting.why.clone().unwrap_or_default();
    for part in ["and 8 more", "job \"process\"", "`n.a`, `to`", "accept --foreign"] {
        ensure!(why.contains(part), "{part:?} is not in {why}");
    }
    let queue = report.queues.iter().find(|queue| queue.queue == "jobs").context("the queue's figures")?;
    ensure!((queue.attribution.unattributed, queue.attribution.by_id) == (9, 0), "{queue:?}");
    Ok(())
}

/// F2, F3.
#[tokio::test]
async fn a_source_that_older_entries_corroborate_still_loses_nobody_to_a_changed_producer() -> Result<()> {
    for shape in [|id: &str| json!({ "job": { "id": id } }), |_: &str| json!({})] {
        let ids = text_ids(9);
        let foreign = produced(&jobs_rule(&["work"]), "text", &ids, "work", shape).await?;
        let bullmq = foreign.bullmq().await?;
        for n in 0..10 {
            let id = format!("older-{n}");
            foreign.rows([id.clone()], "QUEUED", 90).await?;
            bullmq
                .add("jobs", "work", json!({ "jobId": id }), json!({ "jobId": format!("job-{id}") }))
                .await?;
        }
        bullmq.close().await?;
        foreign.pass().await?;
        foreign.age_epochs().await?;
        let report = foreign.pass().await?;
        let counts = source(&report, "foreign/jobs");
        ensure!((counts.scheduled, counts.unknown, counts.absent) == (10, 9, 0), "{report:#?}");
        ensure!(foreign.entries("jobs").await? == 19);
    }
    Ok(())
}

/// F4.
#[tokio::test]
async fn a_queue_that_was_never_seen_takes_a_word_of_its_own() -> Result<()> {
    let handler = Handler::of(&[queue_rule("email", "job-{id}", &["work"])]);
    let foreign = Foreign::with(&jobs_table("text"), &handler).await?;
    let bullmq = foreign.bullmq().await?;
    for id in text_ids(15) {
        foreign.rows([id.clone()], "QUEUED", 120).await?;
        bullmq.add("emails", "work", json!({ "jobId": id }), json!({ "jobId": format!("job-{id}") })).await?;
    }
    let accepted = foreign.salvage(&["accept", "--all"])?.output()?;
    let said = String::from_utf8_lossy(&accepted.stdout).into_owned();
    ensure!(
        accepted.status.code() == Some(1) && said.contains("\"emails\"") && said.contains("--new email"),
        "{said}"
    );
    let report = foreign.pass().await?;
    ensure!(source(&report, "foreign/jobs").unknown == 15, "{report:#?}");
    ensure!(foreign.entries("email").await? == 0);
    let doctor = foreign.salvage(&["doctor"])?.output()?;
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    ensure!(doctor.status.code() == Some(1) && said.contains("\"emails\""), "{said}");
    // Whoever says that it is new gets what he says.
    let accepted = foreign.salvage(&["accept", "--new", "email"])?.output()?;
    ensure!(accepted.status.success(), "{accepted:?}");
    let report = foreign.pass().await?;
    ensure!(source(&report, "foreign/jobs").requeued == 15, "{report:#?}");
    bullmq.close().await
}

/// Forty young rows and an old orphan, and the declaration that a test is about.
async fn with_young_rows(handler: &Handler, queue: &str) -> Result<Foreign> {
    let foreign = Foreign::with(&jobs_table("text"), handler).await?;
    foreign.used_queues(&["jobs"]).await?;
    foreign.pass().await?;
    foreign.age_epochs().await?;
    let bullmq = foreign.bullmq().await?;
    for n in 0..40 {
        let id = format!("young-{n}");
        foreign.rows([id.clone()], "QUEUED", 20).await?;
        bullmq.add(queue, "work", json!({ "jobId": id }), json!({ "jobId": format!("job-{id}") })).await?;
    }
    foreign.rows(["lost".to_owned()], "QUEUED", 120).await?;
    bullmq.close().await?;
    foreign.confirm_declarations().await?;
    accept::queues(&foreign.host, &foreign.settings, &["jobs".to_owned()], ME).await?;
    foreign.age_epochs().await?;
    Ok(foreign)
}

#[tokio::test]
async fn absence_is_not_believed_while_young_rows_have_no_entries() -> Result<()> {
    let foreign = with_young_rows(&jobs_rule(&["work"]), "the-queue-that-is-missing").await?;
    for _ in 0..2 {
        let report = foreign.pass().await?;
        ensure!(story(&report, "lost") == "unknown none -", "{report:#?}");
        let why = job(&report, "lost").sighting.why.clone().unwrap_or_default();
        ensure!(
            why.contains("40 of 40 young rows") && why.contains("accept --declaration foreign/jobs"),
            "{why}"
        );
    }
    let history = String::from_utf8(foreign.salvage(&["history"])?.output()?.stdout)?;
    ensure!(history.contains("control: 40 of 40 young rows"), "{history}");
    // The next pass remembers, also once the young rows are gone.
    foreign.sql("DELETE FROM jobs WHERE id LIKE 'young%'").await?;
    ensure!(story(&foreign.pass().await?, "lost") == "unknown none -");
    let vouched = foreign.salvage(&["accept", "--declaration", "jobs"])?.output()?;
    let said = String::from_utf8_lossy(&vouched.stdout).into_owned();
    ensure!(vouched.status.success() && said.contains("0 of 40 young rows found"), "{said}");
    let report = foreign.pass().await?;
    ensure!(story(&report, "lost") == "absent requeue applied", "{report:#?}");
    Ok(())
}

#[tokio::test]
async fn a_control_group_that_is_found_lets_absence_be_believed() -> Result<()> {
    let foreign = with_young_rows(&jobs_rule(&["work"]), "jobs").await?;
    let report = foreign.pass().await?;
    ensure!(story(&report, "lost") == "absent requeue applied", "{report:#?}");
    Ok(())
}

#[tokio::test]
async fn a_failed_control_is_forgotten_once_a_large_one_passes() -> Result<()> {
    let foreign = with_young_rows(&jobs_rule(&["work"]), "elsewhere").await?;
    ensure!(story(&foreign.pass().await?, "lost") == "unknown none -");
    let bullmq = foreign.bullmq().await?;
    for n in 0..40 {
        let id = format!("young-{n}");
        bullmq.add("jobs", "work", json!({ "jobId": id }), json!({ "jobId": format!("job-{id}") })).await?;
    }
    bullmq.close().await?;
    let report = foreign.pass().await?;
    ensure!(story(&report, "lost") == "absent requeue applied", "{report:#?}");
    Ok(())
}

/// J25, with young rows: what Redis lost says nothing of the manifest, neither in the pass that notices it nor later.
#[tokio::test]
async fn a_wipe_speaks_against_no_declaration() -> Result<()> {
    let server = Redis::start()?;
    let foreign = Foreign::on(&server.url(), &jobs_table("text"), &jobs_rule(&["work"])).await?;
    foreign.used_queues(&["jobs"]).await?;
    foreign.pass().await?;
    foreign.age_epochs().await?;
    let young: Vec<String> = (0..30).map(|n| format!("young-{n}")).collect();
    foreign.rows(young, "QUEUED", 20).await?;
    foreign.rows(["lost".to_owned()], "QUEUED", 120).await?;
    foreign.redis::<()>(&["FLUSHALL"]).await?;
    foreign.used_queues(&["jobs"]).await?;
    for _ in 0..2 {
        ensure!(story(&foreign.pass().await?, "lost") == "absent requeue before-epoch");
    }
    let history = String::from_utf8(foreign.salvage(&["history"])?.output()?.stdout)?;
    ensure!(!history.contains("control"), "{history}");
    accept::queues(&foreign.host, &foreign.settings, &[], ME).await?;
    let report = foreign.pass().await?;
    ensure!(story(&report, "lost") == "absent requeue applied", "{report:#?}");
    Ok(())
}

/// Nothing confirms a declaration that was changed: not the entries that the old one attributed, nor an old acceptance.
#[tokio::test]
async fn a_changed_declaration_is_confirmed_anew() -> Result<()> {
    let foreign = Foreign::with(&jobs_table("text"), &jobs_rule(&["work"])).await?;
    foreign.used_queues(&["jobs"]).await?;
    foreign.pass().await?;
    accept::queues(&foreign.host, &foreign.settings, &[], ME).await?;
    let mut changed = jobs_rule(&["work"]);
    changed.source()["queues"][0]["job_id"] = json!("other-{id}");
    std::fs::write(foreign.handlers().join("foreign.wasm"), changed.component())?;
    foreign.rows(["lost".to_owned()], "QUEUED", 120).await?;
    let plan = |host| foreign.run(host, salvage::pass::Mode::Act);
    let host = foreign.another_host().await?;
    let report = plan(&host).await?;
    ensure!(story(&report, "lost") == "absent requeue before-epoch", "{report:#?}");
    let why =
        job(&report, "lost").outcome.as_ref().and_then(|outcome| outcome.why.clone()).unwrap_or_default();
    ensure!(why.contains("nothing confirms"), "{why}");
    accept::queues(&host, &foreign.settings, &[], ME).await?;
    let report = foreign.run(&host, salvage::pass::Mode::Act).await?;
    ensure!(story(&report, "lost") == "absent requeue applied", "{report:#?}");
    Ok(())
}

/// The operator may say that a name is somebody else's, unless the manifest or the queue says otherwise; and may take it
/// back.
#[tokio::test]
async fn a_foreign_name_is_accepted_listed_contradicted_and_revoked() -> Result<()> {
    let foreign = Foreign::with(&jobs_table("text"), &jobs_rule(&[])).await?;
    let bullmq = foreign.bullmq().await?;
    bullmq.add("jobs", "ping", json!({ "at": 1 }), json!({})).await?;
    foreign.pass().await?;
    accept::queues(&foreign.host, &foreign.settings, &[], ME).await?;
    foreign.rows(["lost".to_owned()], "QUEUED", 120).await?;
    ensure!(story(&foreign.pass().await?, "lost") == "unknown none -");
    let run = |arguments: &[&str]| -> Result<(Option<i32>, String)> {
        let output = foreign.salvage(arguments)?.output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
    };
    let (code, said) = run(&["accept", "--foreign", "jobs", "ping"])?;
    ensure!(code == Some(0) && said.contains("holds 1 named \"ping\""), "{said}");
    let (_, listed) = run(&["accept", "--list"])?;
    ensure!(listed.contains("jobs named \"ping\" of queue \"jobs\""), "{listed}");
    let report = foreign.plan().await?;
    ensure!(story(&report, "lost") == "absent requeue -", "{report:#?}");

    let (code, said) = run(&["accept", "--revoke", "--foreign", "jobs", "ping"])?;
    ensure!(code == Some(0), "{said}");
    ensure!(story(&foreign.plan().await?, "lost") == "unknown none -");
    let (code, said) = run(&["accept", "--revoke", "--foreign", "jobs", "ping"])?;
    ensure!(code == Some(1) && said.contains("is not accepted"), "{said}");

    run(&["accept", "--foreign", "jobs", "ping"])?;
    foreign.rows(["there".to_owned()], "QUEUED", 120).await?;
    bullmq.add("jobs", "ping", json!({ "jobId": "there" }), json!({})).await?;
    foreign.pass().await?;
    let (_, listed) = run(&["accept", "--list"])?;
    ensure!(!listed.contains("\"ping\""), "{listed}");
    let history = run(&["history"])?.1;
    ensure!(history.contains("that acceptance is over"), "{history}");
    let (code, said) = run(&["accept", "--foreign", "jobs", "ping"])?;
    ensure!(code == Some(1) && said.contains("carries the id of a row"), "{said}");
    bullmq.close().await
}

/// Ordinary systems need no operator beyond the first `accept`, whatever else lives in their queues.
#[tokio::test]
async fn pings_and_schedulers_hold_no_orphan_back() -> Result<()> {
    let foreign = Foreign::with(&jobs_table("text"), &jobs_rule(&["work"])).await?;
    let bullmq = foreign.bullmq().await?;
    for n in 0..35 {
        let id = format!("there-{n}");
        foreign.rows([id.clone()], "QUEUED", 120).await?;
        bullmq.add("jobs", "work", json!({ "jobId": id }), json!({ "jobId": format!("job-{id}") })).await?;
    }
    for n in 0..10 {
        bullmq.add("jobs", "ping", json!({ "n": n }), json!({})).await?;
    }
    for n in 0..5 {
        let template = json!({ "name": "tick", "data": { "n": n } });
        let every = json!({ "every": 3_600_000 });
        let scheduler =
            json!({ "queue": "jobs", "scheduler": format!("s{n}"), "repeat": every, "template": template });
        bullmq.call("upsertScheduler", scheduler).await?;
    }
    foreign.pass().await?;
    let accepted = foreign.salvage(&["accept", "--all"])?.output()?;
    let said = String::from_utf8_lossy(&accepted.stdout).into_owned();
    let whose = "35 attributed by id, 0 by payload, 15 foreign by name, 0 unattributed";
    ensure!(said.contains(&format!("jobs: {whose}")), "{said}");
    let doctor = String::from_utf8(foreign.salvage(&["doctor"])?.output()?.stdout)?;
    ensure!(doctor.contains(&format!("entries of jobs: {whose}")), "{doctor}");
    foreign.rows((0..10).map(|n| format!("lost-{n}")), "QUEUED", 120).await?;
    let plan = String::from_utf8(foreign.salvage(&["plan"])?.output()?.stdout)?;
    ensure!(plan.contains(&format!("entries of jobs: {whose}")), "{plan}");
    let requeued = source(&foreign.pass().await?, "foreign/jobs").requeued;
    let report = foreign.pass().await?;
    ensure!(requeued + source(&report, "foreign/jobs").requeued == 10, "{report:#?}");
    ensure!(source(&report, "foreign/jobs").scheduled >= 35, "{report:#?}");
    bullmq.close().await
}
