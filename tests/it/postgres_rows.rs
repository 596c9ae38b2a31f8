//! Reading job rows: exact, in any time zone, by the small index, with whatever odd values a table holds.

use std::borrow::Cow;
use std::collections::BTreeSet;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use salvage::ports::{Jobs as _, LoadedDomain, StoreFailure};
use salvage::postgres::{Pooler, Postgres};
use salvage_core::source::IdKind;
use salvage_tests::example::{
    Jobs, NarrationJob, SlideExportJob, SlideJob, Video, VideoExportJob, VideoJob, uuid,
};
use salvage_tests::services::Database;
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Executor as _, PgPool};

use crate::postgres_fixtures::Bench;

async fn run(pool: &PgPool, sql: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await?;
    Ok(())
}

fn ids(rows: &[salvage_core::candidate::LiveRow]) -> Vec<&str> {
    rows.iter().map(|row| row.id.as_str()).collect()
}

#[tokio::test]
async fn a_token_names_the_same_row_again_in_every_kind_of_column() -> Result<()> {
    async fn check<J: Jobs>(bench: &Bench, source: &str, id: &str, kind: IdKind, time: &str) -> Result<()> {
        J::processing(id).insert(bench.db.pool()).await?;
        let (table, column) = (J::TABLE.name, J::TABLE.updated_at);
        run(bench.db.pool(), &format!("UPDATE {table} SET {column} = '{time}Z'")).await?;
        let candidate = bench.candidate(source, id).await?;
        assert_eq!(bench.source(source).id_kind, kind);
        assert_eq!(candidate.token.updated_at, time);
        assert_eq!(candidate.updated, format!("{}Z", time.replace(' ', "T")).parse::<Timestamp>()?);
        let inputs = bench.postgres.inputs(bench.source(source), &[&candidate.token]).await?;
        assert!(inputs[0].is_some(), "{source}: its own token does not find the row again");
        Ok(())
    }
    let bench = Bench::new().await?;
    let ms = "2026-01-31 09:00:00.123";
    check::<SlideJob>(&bench, "generation", "s1", IdKind::Text, ms).await?;
    check::<VideoExportJob>(&bench, "video-export", "9007199254740993", IdKind::Bigint, ms).await?;
    check::<NarrationJob>(&bench, "narration", &uuid(1), IdKind::Uuid, "2026-01-31 09:00:00.123457").await
}

#[tokio::test]
async fn every_session_time_zone_gives_the_same_candidates() -> Result<()> {
    let bench = Bench::new().await?;
    SlideJob::processing("stale").updated_ago(3_700).insert(bench.db.pool()).await?;
    SlideJob::processing("fresh").updated_ago(3_500).insert(bench.db.pool()).await?;
    NarrationJob::processing(uuid(1)).updated_ago(3_700).insert(bench.db.pool()).await?;
    NarrationJob::processing(uuid(2)).updated_ago(3_500).insert(bench.db.pool()).await?;
    let before = bench.postgres.now().await? - SignedDuration::from_hours(1);
    let mut seen = Vec::new();
    for zone in ["UTC", "Asia/Seoul", "America/Los_Angeles"] {
        let pool = pool_in(zone, bench.db.url()).await?;
        let shown: String = sqlx::query_scalar("SHOW timezone").fetch_one(&pool).await?;
        assert_eq!(shown, zone);
        let postgres = Postgres::from_pool(pool, Pooler::None, "bull");
        let clocks_apart = (postgres.now().await?.duration_since(bench.postgres.now().await?)).as_secs();
        assert!(clocks_apart.abs() < 60, "the database's clock is {clocks_apart} s apart in {zone}");
        let slides = postgres.live_rows(bench.source("generation"), before, None, 10).await?;
        let narrations = postgres.live_rows(bench.source("narration"), before, None, 10).await?;
        assert_eq!((ids(&slides), ids(&narrations)), (vec!["stale"], vec![uuid(1).as_str()]), "{zone}");
        let token = bench.candidate("generation", "stale").await?.token;
        let inputs = postgres.inputs(bench.source("generation"), &[&token]).await?;
        seen.push((slides, narrations, inputs));
    }
    assert!(seen.iter().all(|one| *one == seen[0]), "{seen:#?}");
    Ok(())
}

/// The zone is set after connecting: the driver sends one of its own when it connects.
async fn pool_in(zone: &str, url: &str) -> Result<PgPool> {
    let set = format!("SET TIME ZONE '{zone}'; SET datestyle = 'German'");
    let options = PgPoolOptions::new().max_connections(1).after_connect(move |connection, _| {
        let set = set.clone();
        Box::pin(async move { connection.execute(AssertSqlSafe(set)).await.map(drop) })
    });
    Ok(options.connect(url).await?)
}

#[tokio::test]
async fn bigint_pages_follow_the_number_and_see_each_row_once() -> Result<()> {
    let bench = Bench::new().await?;
    for id in [9, 10, 99, 100] {
        VideoExportJob::queued(id).stale().insert(bench.db.pool()).await?;
    }
    let source = bench.source("video-export");
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = bench.postgres.live_rows(source, Timestamp::MAX, after.as_deref(), 2).await?;
        seen.extend(page.iter().map(|row| row.id.clone()));
        after = page.last().map(|row| row.id.clone());
        if page.len() < 2 {
            break;
        }
    }
    assert_eq!(seen, ["9", "10", "99", "100"]);
    Ok(())
}

#[tokio::test]
async fn only_live_rows_of_the_sources_own_types_are_listed() -> Result<()> {
    let bench = Bench::new().await?;
    let pool = bench.db.pool();
    SlideJob::queued("a").stale().insert(pool).await?;
    SlideJob::processing("b").stale().kind("OUTLINE").insert(pool).await?;
    SlideJob::processing("c").stale().kind("UNHEARD-OF").insert(pool).await?;
    SlideJob::completed("d").stale().insert(pool).await?;
    SlideJob::failed("e").stale().insert(pool).await?;
    SlideJob::processing("f").insert(pool).await?;
    let source = bench.source("generation");
    let before = bench.postgres.now().await? - SignedDuration::from_hours(1);
    assert_eq!(ids(&bench.postgres.live_rows(source, before, None, 10).await?), ["a", "b"]);

    let asked = ["z", "a", "c", "g\0", "d", "b", "f", "b"].map(Cow::from);
    let are_live = bench.postgres.are_live(source, &asked).await?;
    assert_eq!(are_live, [false, true, false, false, false, true, true, true]);
    let existing = async |ids: &[&str]| {
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        bench.postgres.existing(source, &ids).await
    };
    assert_eq!(existing(&["z", "d"]).await?, BTreeSet::from(["d".to_owned()]));
    assert!(existing(&["z", "c"]).await?.is_empty());
    let number = bench.postgres.existing(bench.source("video-export"), &["not a number".into()]).await?;
    assert!(number.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_row_whose_time_is_infinite_is_listed_without_one() -> Result<()> {
    let bench = Bench::new().await?;
    for id in ["past", "future"] {
        SlideJob::queued(id).insert(bench.db.pool()).await?;
    }
    let set = "UPDATE \"SlideJob\" SET \"updatedAt\" = CASE id WHEN 'past' THEN '-infinity' ELSE 'infinity' END::timestamp";
    run(bench.db.pool(), set).await?;
    let rows = bench.postgres.live_rows(bench.source("generation"), Timestamp::UNIX_EPOCH, None, 10).await?;
    assert_eq!(ids(&rows), ["future", "past"]);
    assert!(rows.iter().all(|row| row.updated.is_none() && row.updated_at.is_none()));
    Ok(())
}

#[tokio::test]
async fn the_census_counts_live_undeclared_and_skewed_rows() -> Result<()> {
    let bench = Bench::new().await?;
    let pool = bench.db.pool();
    SlideJob::queued("a").insert(pool).await?;
    SlideJob::processing("b").kind("UNHEARD-OF").insert(pool).await?;
    SlideJob::processing("c").updated_ago(-50 * 60).insert(pool).await?;
    SlideJob::processing("d").updated_ago(-30).insert(pool).await?;
    SlideJob::completed("e").updated_ago(-50 * 60).insert(pool).await?;
    let declared = BTreeSet::from(["GENERATION".to_owned(), "OUTLINE".to_owned()]);
    let now = bench.postgres.now().await?;
    let census = bench.postgres.census(bench.source("generation"), &declared, now).await?;
    assert_eq!((census.live, census.undeclared, census.clock_skew), (4, 1, 1));
    let empty = bench.postgres.census(bench.source("narration"), &declared, now).await?;
    assert_eq!((empty.live, empty.undeclared, empty.clock_skew), (0, 0, 0));
    Ok(())
}

#[tokio::test]
async fn inputs_show_columns_and_reads_in_the_form_of_the_contract() -> Result<()> {
    let bench = Bench::new().await?;
    let pool = bench.db.pool();
    Video::composing("v1").tracks(4).insert(pool).await?;
    VideoJob::processing("j1").of("v1").insert(pool).await?;
    VideoJob::processing("j2").of("none").insert(pool).await?;
    run(pool, "UPDATE \"VideoJob\" SET \"updatedAt\" = '2026-01-31 09:00:00.12'").await?;
    let tokens = [
        bench.candidate("composition", "j1").await?.token,
        bench.candidate("composition", "j2").await?.token,
    ];
    let stranger = salvage_core::candidate::RowToken { xmin: "1".into(), ..tokens[0].clone() };

    let source = bench.source("composition");
    let inputs = bench.postgres.inputs(source, &[&tokens[1], &stranger, &tokens[0]]).await?;
    assert!(inputs[1].is_none(), "a row that moved on has no inputs");
    let (two, one) = (inputs[0].as_ref().expect("j2"), inputs[2].as_ref().expect("j1"));
    assert_eq!(
        one.columns,
        r#"{"id":"j1","status":"PROCESSING","updatedAt":"2026-01-31T09:00:00.120000Z","type":"COMPOSITION","progress":40,"error":null,"videoId":"v1"}"#
    );
    assert_eq!(one.reads[0].rows, [r#"{"id":"v1","title":"Video v1","status":"COMPOSING"}"#]);
    let positions: Vec<Value> = one.reads[1]
        .rows
        .iter()
        .map(|row| serde_json::from_str::<Value>(row).map(|row| row["position"].clone()))
        .collect::<Result<_, _>>()?;
    assert_eq!(positions, [json!(0), json!(1), json!(2)]);
    assert!(one.reads[1].truncated && !one.reads[0].truncated);
    assert!(two.reads.iter().all(|read| read.rows.is_empty() && !read.truncated));
    assert_ne!(one.digest, two.digest);
    assert_eq!(bench.postgres.inputs(source, &[&tokens[0]]).await?[0].as_ref(), Some(one), "not repeatable");
    Ok(())
}

#[tokio::test]
async fn cells_keep_every_digit_and_every_null() -> Result<()> {
    let db = Database::example().await?;
    run(
        db.pool(),
        "ALTER TABLE narration_jobs ADD big bigint DEFAULT 9007199254740993, ADD exact numeric DEFAULT 0.10, \
         ADD ratio float8 DEFAULT 0.1, ADD flag boolean DEFAULT true, ADD doc json DEFAULT '{\"b\": 1, \"a\": \"\\u0000\"}', \
         ADD docb jsonb DEFAULT '{\"a\":[1]}', ADD none text, ADD numbers bigint[] DEFAULT '{1,2}', \
         ADD never timestamptz DEFAULT 'infinity', ADD \"qu\"\"ote\" text DEFAULT 'x'",
    )
    .await?;
    let extra = ["big", "exact", "ratio", "flag", "doc", "docb", "none", "numbers", "never", "qu\"ote"];
    let bench = Bench::on(db, |domains| {
        domains[1].manifest.sources[1].table.extra_columns = extra.map(str::to_owned).to_vec();
    })
    .await?;
    NarrationJob::queued(uuid(7)).insert(bench.db.pool()).await?;
    let token = bench.candidate("narration", &uuid(7)).await?.token;
    let inputs = bench.postgres.inputs(bench.source("narration"), &[&token]).await?;
    let columns = inputs[0].as_ref().expect("the row").columns.clone();
    let cells = columns.split_once("\"big\"").expect("the extra columns").1;
    assert_eq!(
        format!("\"big\"{cells}"),
        r#""big":"9007199254740993","exact":"0.10","ratio":0.1,"flag":true,"doc":{"b": 1, "a": "\u0000"},"docb":{"a": [1]},"none":null,"numbers":["1","2"],"never":"infinity","qu\"ote":"x"}"#
    );
    Ok(())
}

#[tokio::test]
async fn partitioned_tables_and_other_schemas_are_read_like_any_other() -> Result<()> {
    let db = Database::example().await?;
    run(
        db.pool(),
        "CREATE SCHEMA app; CREATE TABLE app.jobs (LIKE \"VideoExportJob\" INCLUDING DEFAULTS) PARTITION BY RANGE (id); \
         CREATE TABLE app.jobs_low PARTITION OF app.jobs (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (100); \
         CREATE TABLE app.jobs_high PARTITION OF app.jobs (PRIMARY KEY (id)) FOR VALUES FROM (100) TO (200); \
         INSERT INTO app.jobs (id, \"videoId\", format) VALUES (9, 'v', 'MP4'), (150, 'v', 'MP4')",
    )
    .await?;
    let bench =
        Bench::on(db, |domains| domains[2].manifest.sources[1].table.table = "app.jobs".into()).await?;
    let rows = bench.postgres.live_rows(bench.source("video-export"), Timestamp::MAX, None, 10).await?;
    assert_eq!(ids(&rows), ["9", "150"]);
    let token = bench.candidate("video-export", "150").await?.token;
    assert!(bench.postgres.inputs(bench.source("video-export"), &[&token]).await?[0].is_some());
    Ok(())
}

#[tokio::test]
async fn a_source_that_does_not_fit_is_named_and_the_others_go_on() -> Result<()> {
    let bench = Bench::new().await?;
    run(bench.db.pool(), "CREATE VIEW job_view AS SELECT * FROM \"SlideJob\"").await?;
    let mut domains: Vec<LoadedDomain> = crate::postgres_fixtures::domains();
    domains[0].manifest.sources[0].table.table = "job_view".into();
    domains[1].manifest.sources[0].table.queued = "QUEUD".into();
    domains[1].manifest.sources[1].table.table = "narration_job".into();
    domains[2].manifest.sources[0].table.updated_at = "nul\0".into();
    let (sources, misfits) = bench.postgres.resolve(&domains).await?;
    assert_eq!(
        sources.iter().map(|source| source.name.to_string()).collect::<Vec<_>>(),
        ["exports/video-export"]
    );
    let faults: Vec<String> = misfits.iter().flat_map(|misfit| misfit.faults.clone()).collect();
    assert_eq!(
        faults,
        [
            "job_view (job table) must be a table or a partitioned table, found a view",
            "enum \"JobStatus\" of \"VideoJob\".status has no status QUEUD, it has QUEUED, PROCESSING, COMPLETED, FAILED, \
             CANCELLED; did you mean \"QUEUED\"?",
            "table narration_job (job table) does not exist; did you mean narration_jobs?",
            "table \"SlideExportJob\" has no column \"nul\0\" (updated-at column)",
        ]
    );
    Ok(())
}

/// Goal: the candidates of a large table are found by the live-row index even in the plan that PostgreSQL keeps for a
/// long-lived connection. Method: a million rows, 4,000 of them live, and the generic plan of the very statement.
#[tokio::test]
async fn the_live_row_index_serves_the_candidates_among_a_million_rows() -> Result<()> {
    let bench = Bench::new().await?;
    run(
        bench.db.pool(),
        "INSERT INTO \"SlideJob\" (id, \"deckId\", type, status, \"updatedAt\") \
         SELECT 'job-' || n, 'd', 'GENERATION', (CASE WHEN n % 250 = 0 THEN 'PROCESSING' ELSE 'COMPLETED' END)::\"JobStatus\", \
         '2026-01-01'::timestamp + n * interval '1 second' FROM generate_series(1, 1000000) AS n; ANALYZE \"SlideJob\"",
    )
    .await?;
    let plan = bench.postgres.candidates_plan(bench.source("generation"), 200).await?;
    assert!(plan.iter().any(|line| line.contains("Index Scan using \"SlideJob_live\"")), "{plan:#?}");
    assert!(!plan.iter().any(|line| line.contains("Sort")), "{plan:#?}");
    let page =
        bench.postgres.live_rows(bench.source("generation"), Timestamp::MAX, Some("job-5"), 200).await?;
    assert_eq!(page.len(), 200);
    Ok(())
}

#[tokio::test]
async fn a_refused_read_names_what_was_attempted_and_concerns_only_itself() -> Result<()> {
    let bench = Bench::new().await?;
    run(bench.db.pool(), "DROP TABLE narration_jobs").await?;
    let failure = bench.postgres.live_rows(bench.source("narration"), Timestamp::MAX, None, 1).await;
    let failure = failure.expect_err("the table is gone");
    assert!(failure.is_local() && matches!(failure, StoreFailure::Refused { .. }), "{failure:?}");
    assert!(failure.to_string().contains("list the candidates of video-composition/narration"), "{failure}");
    SlideExportJob::queued("e1").insert(bench.db.pool()).await?;
    assert_eq!(
        bench.postgres.live_rows(bench.source("slide-export"), Timestamp::MAX, None, 1).await?.len(),
        1
    );
    Ok(())
}
