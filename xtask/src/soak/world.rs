//! The servers, the application's tables, and what the soak itself records beside them.

use super::queue::ENTRIES_LUA;
use crate::demo::application::Table;
use crate::paths;
use anyhow::{Context, Result};
use salvage_services::postgres::psql;
use salvage_services::{Postgres, Redis, RedisOptions, example};

/// What is recorded in PostgreSQL, so that it outlives every worker and host: each run of a job, and each write of a host's
/// that must not be. Both are written in the very transaction they are about.
const RECORDS: &str = "
CREATE SCHEMA soak;
CREATE TABLE soak.runs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    worker text NOT NULL, source text NOT NULL, job text NOT NULL, entry jsonb NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp(), completed_at timestamptz);
CREATE INDEX runs_job ON soak.runs (source, job);
CREATE TABLE soak.wrongs (what text NOT NULL, source text, job text NOT NULL, detail text NOT NULL);
-- Argument: the source.
CREATE FUNCTION soak.watch_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF current_setting('application_name') = 'salvage' AND OLD.status::text NOT IN ('QUEUED', 'PROCESSING') THEN
        INSERT INTO soak.wrongs VALUES
            ('terminal row changed', TG_ARGV[0], OLD.id::text, OLD.status::text || ' to ' || NEW.status::text);
    END IF;
    RETURN NEW;
END $$;
-- Argument: a column that may say READY.
CREATE FUNCTION soak.watch_parent() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE now_is text := to_jsonb(NEW) ->> TG_ARGV[0];
BEGIN
    IF current_setting('application_name') = 'salvage' AND to_jsonb(OLD) ->> TG_ARGV[0] = 'READY' AND now_is <> 'READY' THEN
        INSERT INTO soak.wrongs VALUES ('parent downgraded', NULL, OLD.id, TG_ARGV[0] || ' READY to ' || now_is);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER watch_status BEFORE UPDATE ON \"SlideDeck\" FOR EACH ROW EXECUTE FUNCTION soak.watch_parent('status');
CREATE TRIGGER watch_export BEFORE UPDATE ON \"SlideDeck\" FOR EACH ROW EXECUTE FUNCTION soak.watch_parent('exportStatus');
CREATE TRIGGER watch_status BEFORE UPDATE ON \"Video\" FOR EACH ROW EXECUTE FUNCTION soak.watch_parent('status');
CREATE TRIGGER watch_export BEFORE UPDATE ON \"Video\" FOR EACH ROW EXECUTE FUNCTION soak.watch_parent('exportStatus');
CREATE TRIGGER watch_narration BEFORE UPDATE ON \"Video\" FOR EACH ROW EXECUTE FUNCTION soak.watch_parent('narration_status');
";

/// Private servers that keep their data through every kill, with the application's database.
pub(super) struct World {
    pub(super) postgres: Postgres,
    pub(super) redis: Redis,
    /// URL of the application's database.
    pub(super) database: String,
}

impl World {
    /// Starts both and makes the tables.
    pub(super) fn start() -> Result<Self> {
        // What was committed is in the kernel's hands by then, and so survives the death of the server's processes.
        let postgres = Postgres::start_with(&["synchronous_commit=on"])?;
        // The same with each write that Redis has answered. With `everysec` a write may wait for a slow fsync of the one before.
        let durable = RedisOptions::default().set("--appendonly", &["yes"]).set("--appendfsync", &["no"]);
        let redis = Redis::start_with(durable)?;
        psql(&postgres.url("postgres"), &["--command", "CREATE DATABASE soak"])?;
        let database = postgres.url("soak");
        example::migrate(&database, &paths::root().join("migrations/example"))?;
        let world = Self { postgres, redis, database };
        world.sql(RECORDS).context("making the soak's own tables")?;
        for table in Table::ALL {
            let shape = table.shape();
            world.sql(&format!(
                "CREATE TRIGGER watch BEFORE UPDATE ON {} FOR EACH ROW EXECUTE FUNCTION soak.watch_job('{}')",
                shape.table, shape.source
            ))?;
        }
        Ok(world)
    }

    /// Runs SQL of ours; what it printed.
    pub(super) fn sql(&self, statement: &str) -> Result<String> {
        psql(&self.database, &["--command", statement])
    }

    /// Every live entry of every queue, at one instant.
    pub(super) fn entries(&self) -> Result<Vec<super::queue::Entry>> {
        let queues = Table::ALL.map(|table| table.shape().queue);
        let mut words = vec!["EVAL", ENTRIES_LUA, "0"];
        words.extend(queues);
        let listed = self.redis.command(&words).context("listing the entries")?;
        Ok(listed.lines().filter_map(super::queue::Entry::parse).collect())
    }
}
