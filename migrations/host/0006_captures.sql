-- The questions that handlers were asked, kept only where the operator said so, to be asked again of another build. They hold
-- the rows that a decision was made on, without the columns that the operator named; a payload only as part of a decision,
-- and only where no column is left out.
-- Lock: ACCESS EXCLUSIVE on the new table only, which nobody can be using yet.

CREATE TABLE salvage.captures (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    domain           text        NOT NULL,
    source           text        NOT NULL,
    job_id           text        NOT NULL,
    component_digest text        NOT NULL,
    -- Digest over question and decision: what is asked in each pass is kept once.
    digest           text        NOT NULL,
    -- In the form of a case file. Not jsonb, which refuses some texts that PostgreSQL's own json can hold.
    question         json        NOT NULL,
    decision         json        NOT NULL,
    -- Only the decision's kind was kept.
    is_redacted      boolean     NOT NULL,
    at               timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE UNIQUE INDEX captures_once ON salvage.captures (domain, source, job_id, component_digest, digest);

-- The newest of a domain.
CREATE INDEX captures_domain ON salvage.captures (domain, at);

-- For pruning.
CREATE INDEX captures_at ON salvage.captures (at);
