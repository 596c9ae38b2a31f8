-- What the passes of one domain remember of a queue, where each domain has a lease of its own ([lease] scope = "domain").
-- Two domains may share a queue: each leaves a nonce of its own there and remembers that one, so that neither takes the
-- other's for a loss. A table of its own, because an older host may be at work beside this one, and writes salvage.queues
-- by its primary key; what passes under the one lease of a whole deployment remember stays there. The view has both.
-- Lock: ACCESS EXCLUSIVE on the new table and view only, which nobody can be using yet.

CREATE TABLE salvage.domain_queues (
    domain        text        NOT NULL,
    -- From here on as in salvage.queues.
    prefix        text        NOT NULL,
    queue         text        NOT NULL,
    nonce         text,
    nonce_next    text,
    id_counter    bigint,
    ever_had_jobs boolean     NOT NULL,
    run_id        text        NOT NULL,
    replid        text        NOT NULL,
    evicted_keys  bigint      NOT NULL,
    epoch_began   timestamptz NOT NULL,
    accepted_at   timestamptz,
    PRIMARY KEY (domain, prefix, queue)
);

-- `scope` is what a lease covers: `global`, or a domain. No domain has that name.
CREATE VIEW salvage.queue_memories AS
SELECT 'global'::text AS scope, q.prefix, q.queue, q.nonce, q.nonce_next, q.id_counter, q.ever_had_jobs, q.run_id,
    q.replid, q.evicted_keys, q.epoch_began, q.accepted_at
FROM salvage.queues AS q
UNION ALL
SELECT d.domain, d.prefix, d.queue, d.nonce, d.nonce_next, d.id_counter, d.ever_had_jobs, d.run_id,
    d.replid, d.evicted_keys, d.epoch_began, d.accepted_at
FROM salvage.domain_queues AS d;
