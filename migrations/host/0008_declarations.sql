-- What confirms a source's declaration (its table mapping and queue rules): rows that were attributed to entries under it,
-- control groups that it failed, and what operators said. What is confirmed holds for one declaration: another one has
-- another digest, and begins anew.
-- Lock: ACCESS EXCLUSIVE on the new tables, which nobody can be using yet, and for an instant on salvage.queues and
-- salvage.domain_queues (a column without a default rewrites nothing), which no pass keeps locked.

CREATE TABLE salvage.declarations (
    prefix          text        NOT NULL,
    domain          text        NOT NULL,
    source          text        NOT NULL,
    -- SHA-256 of the declaration, hex.
    digest          text        NOT NULL,
    -- When a row of the source was first attributed to an entry under it.
    confirmed_at    timestamptz,
    -- The queues that were accepted while it was in force.
    accepted_queues text[]      NOT NULL DEFAULT '{}',
    -- Who vouched for it against its control group, and when.
    vouched_by      text,
    vouched_at      timestamptz,
    PRIMARY KEY (prefix, domain, source, digest)
);

-- Control groups that a declaration failed and has not passed since.
CREATE TABLE salvage.failed_controls (
    prefix     text        NOT NULL,
    domain     text        NOT NULL,
    source     text        NOT NULL,
    digest     text        NOT NULL,
    job_type   text        NOT NULL,
    -- QUEUED or PROCESSING, whatever the words of the table are.
    status     text        NOT NULL,
    by_id      bigint      NOT NULL,
    by_payload bigint      NOT NULL,
    left_over  bigint      NOT NULL,
    missing    bigint      NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (prefix, domain, source, digest, job_type, status)
);

-- Job names that an operator called somebody else's, in one queue.
CREATE TABLE salvage.foreign_names (
    prefix text        NOT NULL,
    queue  text        NOT NULL,
    name   text        NOT NULL,
    who    text        NOT NULL,
    at     timestamptz NOT NULL,
    PRIMARY KEY (prefix, queue, name)
);

-- When Redis was last found to have lost something of the queue, perhaps; NULL if never since it was first met.
ALTER TABLE salvage.queues ADD COLUMN lost_at timestamptz;
ALTER TABLE salvage.domain_queues ADD COLUMN lost_at timestamptz;

CREATE OR REPLACE VIEW salvage.queue_memories AS
SELECT 'global'::text AS scope, q.prefix, q.queue, q.nonce, q.nonce_next, q.id_counter, q.ever_had_jobs, q.run_id,
    q.replid, q.evicted_keys, q.epoch_began, q.accepted_at, q.lost_at
FROM salvage.queues AS q
UNION ALL
SELECT d.domain, d.prefix, d.queue, d.nonce, d.nonce_next, d.id_counter, d.ever_had_jobs, d.run_id,
    d.replid, d.evicted_keys, d.epoch_began, d.accepted_at, d.lost_at
FROM salvage.domain_queues AS d;
