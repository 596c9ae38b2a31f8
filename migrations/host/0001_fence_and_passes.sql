-- What makes a late writer harmless, and the list of passes.
-- Every write of a pass first reads its scope's row in `fence` with a share lock and goes on only if generation and
-- token are still its own; so a host that was frozen while another worked writes nothing when it wakes.
-- Lock: ACCESS EXCLUSIVE on the new tables only, which nobody can be using yet.

CREATE SCHEMA IF NOT EXISTS salvage;

CREATE TABLE salvage.fence (
    -- What the lease covers: `global`, or a domain.
    scope      text        PRIMARY KEY,
    -- Grows by one with every pass of the scope.
    generation bigint      NOT NULL,
    -- The only pass that may write.
    pass_token text        NOT NULL,
    raised_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE salvage.passes (
    id          text        PRIMARY KEY,
    scope       text        NOT NULL,
    generation  bigint      NOT NULL,
    started_at  timestamptz NOT NULL,
    -- NULL while it runs, and for ever if it died.
    duration_ms bigint,
    -- The counters of each source, as in `once --json`.
    sources     jsonb
);

-- The newest first for `history`, the oldest first for pruning.
CREATE INDEX passes_started_at ON salvage.passes (started_at);
