-- What is remembered of each queue between passes: whether Redis may have lost data since, whose jobs were seen there,
-- and what an operator vouched for. All of it by key prefix, since two applications may keep queues of the same name.
-- Lock: ACCESS EXCLUSIVE on the new tables only, which nobody can be using yet.

CREATE TABLE salvage.queues (
    prefix        text        NOT NULL,
    queue         text        NOT NULL,
    -- The last nonce known to be in Redis, and the one being written when the last pass ended: a crash between the two
    -- stores leaves either there.
    nonce         text,
    nonce_next    text,
    -- BullMQ's counter; NULL if the queue never had one.
    id_counter    bigint,
    ever_had_jobs boolean     NOT NULL,
    run_id        text        NOT NULL,
    replid        text        NOT NULL,
    evicted_keys  bigint      NOT NULL,
    -- Since when this Redis provably lost nothing.
    epoch_began   timestamptz NOT NULL,
    -- When the operator accepted this epoch, if so.
    accepted_at   timestamptz,
    PRIMARY KEY (prefix, queue)
);

-- A queue held an entry that names an existing row of a source.
CREATE TABLE salvage.corroborations (
    prefix  text        NOT NULL,
    domain  text        NOT NULL,
    source  text        NOT NULL,
    queue   text        NOT NULL,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (prefix, domain, source, queue)
);

-- Who accepted a queue, and when. Never pruned.
CREATE TABLE salvage.accepted (
    id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    prefix text        NOT NULL,
    queue  text        NOT NULL,
    who    text        NOT NULL,
    at     timestamptz NOT NULL
);

-- Entries that cannot be read and that an operator marked as harmless.
CREATE TABLE salvage.accepted_entries (
    prefix   text        NOT NULL,
    queue    text        NOT NULL,
    entry_id text        NOT NULL,
    who      text        NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (prefix, queue, entry_id)
);
