-- What a pass was about to do, and what it decided and did, with its evidence. Neither ever holds a payload.
-- Lock: ACCESS EXCLUSIVE on the new tables only, which nobody can be using yet.

-- Committed before the acts of a stage. The recovery cap counts these, so that a crash in the middle of an act cannot
-- hide a recovery.
CREATE TABLE salvage.intents (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pass_id    text        NOT NULL,
    generation bigint      NOT NULL,
    domain     text        NOT NULL,
    source     text        NOT NULL,
    job_id     text        NOT NULL,
    is_requeue boolean     NOT NULL,
    -- It is proven that nothing was enqueued; it counts no more.
    withdrawn  boolean     NOT NULL DEFAULT false,
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX intents_job ON salvage.intents (domain, source, job_id, at);

-- For pruning.
CREATE INDEX intents_at ON salvage.intents (at);

-- One row per story of a job; a story that does not change from pass to pass only grows its count.
CREATE TABLE salvage.ledger (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    domain           text        NOT NULL,
    source           text        NOT NULL,
    job_id           text        NOT NULL,
    -- Digest over row token, sighting, decision and outcome.
    story            text        NOT NULL,
    job_type         text        NOT NULL,
    -- Status, updatedAt and xmin as read.
    "row"            jsonb       NOT NULL,
    -- The last pass's.
    evidence         jsonb       NOT NULL,
    generation       bigint      NOT NULL,
    sighting         text        NOT NULL,
    sighting_why     text,
    inputs_digest    text,
    component_digest text,
    decision         text        NOT NULL,
    decision_reason  text,
    outcome          text,
    outcome_why      text,
    decide_us        bigint,
    times            bigint      NOT NULL DEFAULT 1,
    first_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at          timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Also serves `explain`, which reads all stories of one job.
CREATE UNIQUE INDEX ledger_story ON salvage.ledger (domain, source, job_id, story);

-- For pruning.
CREATE INDEX ledger_last_at ON salvage.ledger (last_at);
