-- What waits: storms for an operator's word, rows that PostgreSQL rejects for their time. And what a pass was alarmed at.
-- Lock: ACCESS EXCLUSIVE on salvage.passes for an instant (a column with a constant default rewrites nothing), which no
-- pass keeps locked; and on the new tables, which nobody can be using yet.

-- Objects {source, kind, text}, in the order in which they were raised.
ALTER TABLE salvage.passes ADD COLUMN alarms jsonb NOT NULL DEFAULT '[]';

-- A mass of jobs of one source that would be failed without a trace of having run. Here as long as passes see it.
CREATE TABLE salvage.storms (
    prefix  text        NOT NULL,
    domain  text        NOT NULL,
    source  text        NOT NULL,
    -- How many in the last pass.
    orphans bigint      NOT NULL,
    -- When it was first seen: what was accepted before that does not count.
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (prefix, domain, source)
);

-- Rows whose change PostgreSQL rejects.
CREATE TABLE salvage.parked (
    domain      text        NOT NULL,
    source      text        NOT NULL,
    job_id      text        NOT NULL,
    -- Status, updatedAt and xmin as rejected: with others the row is tried again at once.
    status      text        NOT NULL,
    updated_at  text        NOT NULL,
    xmin_text   text        NOT NULL,
    why         text        NOT NULL,
    times       bigint      NOT NULL,
    -- Not tried again before.
    until       timestamptz NOT NULL,
    -- The operator who last had it tried again before its time.
    released_by text,
    released_at timestamptz,
    PRIMARY KEY (domain, source, job_id)
);

-- For pruning.
CREATE INDEX parked_until ON salvage.parked (until);
