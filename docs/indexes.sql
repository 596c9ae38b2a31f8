-- Measures how the candidates of a job table are found, and what it costs the application: without an index for it, with
-- (status, "updatedAt"), and with the live-row index. Prints one line per variant. See indexes.md.
--
-- Run it on an empty database of a server that does nothing else: psql -X -f indexes.sql DATABASE
-- In schema `indexes` it makes a table of a million rows, 4,000 of them live, once per variant; it drops the schema at
-- the end.

\set ON_ERROR_STOP on
\set QUIET on
\pset footer off
SET client_min_messages = warning;
SET jit = off;

CREATE SCHEMA indexes;
SET search_path = indexes;
CREATE TYPE "JobStatus" AS ENUM ('QUEUED', 'PROCESSING', 'COMPLETED', 'FAILED', 'CANCELLED');
CREATE TABLE figures (
    n serial, variant text, plan text, page_ms numeric, listing_ms numeric, index_kb bigint, hot_percent numeric
);

-- A new table with the variant's index. Every 250th row is live. A tenth of each page is free, as in a table that has
-- been written to for a while: HOT also needs room on the page.
CREATE PROCEDURE make(index_ddl text) LANGUAGE plpgsql AS $$
BEGIN
    DROP TABLE IF EXISTS "SlideJob";
    CREATE TABLE "SlideJob" (
        id text PRIMARY KEY, "deckId" text NOT NULL, type text NOT NULL, status "JobStatus" NOT NULL,
        progress integer NOT NULL DEFAULT 0, error text, "createdAt" timestamp(3) NOT NULL, "updatedAt" timestamp(3) NOT NULL
    ) WITH (fillfactor = 90, autovacuum_enabled = off);
    INSERT INTO "SlideJob" (id, "deckId", type, status, "createdAt", "updatedAt")
    SELECT gen_random_uuid(), gen_random_uuid(), 'GENERATION',
        (CASE WHEN n % 250 = 0 THEN 'PROCESSING' ELSE 'COMPLETED' END)::"JobStatus", at, at
    FROM generate_series(1, 1000000) AS n, LATERAL (SELECT '2026-01-01'::timestamp + n * interval '1 second' AS at) AS t;
    IF index_ddl <> '' THEN EXECUTE index_ddl; END IF;
END $$;

-- The statement of the host, word for word but for the columns it returns; a page of 200 after an id.
CREATE FUNCTION page(after text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE page_sql() USING '2027-01-01T00:00:00Z', after;
END $$;

CREATE FUNCTION page_sql() RETURNS text LANGUAGE sql AS $$
    SELECT 'SELECT j."id" FROM "SlideJob" AS j WHERE j."status" IN (''QUEUED'', ''PROCESSING'')
        AND j."type"::text IN (''GENERATION'', ''OUTLINE'')
        AND (j."updatedAt" < ($1::text::timestamptz AT TIME ZONE ''UTC'') OR j."updatedAt" IS NULL
            OR j."updatedAt" = ''infinity'')
        AND j."id" > $2::text::text ORDER BY j."id" LIMIT 200'
$$;

-- All 4,000 candidates, page by page; milliseconds of the first page and of the whole. Median of seven.
CREATE FUNCTION listing(OUT page_ms numeric, OUT whole_ms numeric) LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz; after text; seen bigint; pages numeric[] = '{}'; wholes numeric[] = '{}';
BEGIN
    FOR run IN 1..7 LOOP
        began = clock_timestamp(); after = '';
        LOOP
            SELECT count(*), max(p) INTO seen, after FROM page(after) AS p;
            IF cardinality(pages) < run THEN
                pages = pages || (extract(epoch FROM clock_timestamp() - began) * 1000)::numeric;
            END IF;
            EXIT WHEN seen < 200;
        END LOOP;
        wholes = wholes || (extract(epoch FROM clock_timestamp() - began) * 1000)::numeric;
    END LOOP;
    SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY p) INTO page_ms FROM unnest(pages) AS p;
    SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY w) INTO whole_ms FROM unnest(wholes) AS w;
END $$;

-- The node of the plan that touches the table.
CREATE FUNCTION plan() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    line text; node text;
BEGIN
    EXECUTE 'PREPARE q (text, text) AS ' || page_sql();
    SET LOCAL plan_cache_mode = force_generic_plan;
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) EXECUTE q (''2027-01-01T00:00:00Z'', '''')' LOOP
        IF node IS NULL AND line ~ 'Scan' THEN
            node = regexp_replace(line, '^[ ->]*(.*Scan)( using (\S+))?.*$', '\1 \3');
        END IF;
    END LOOP;
    DEALLOCATE q;
    RETURN node;
END $$;

\echo making and measuring three tables of a million rows; a minute or two
CREATE PROCEDURE measure(variant text, index_name text) LANGUAGE plpgsql AS $$
DECLARE
    l record;
BEGIN
    SELECT * INTO l FROM listing();
    INSERT INTO figures (variant, plan, page_ms, listing_ms, index_kb)
    VALUES (measure.variant, plan(), l.page_ms, l.whole_ms, pg_relation_size(to_regclass(nullif(index_name, ''))) / 1024);
END $$;

-- A worker's progress write: progress and updatedAt, status as it is. Of all live rows, in one transaction.
\set beat 'UPDATE "SlideJob" SET progress = progress + 1, "updatedAt" = "updatedAt" + interval \'1 second\' WHERE status = \'PROCESSING\';'
-- A session reports its statistics between two statements, and at most once a second.
\set count_hot 'DO $$ BEGIN PERFORM pg_sleep(1.5); END $$; UPDATE figures SET hot_percent = (SELECT round(100.0 * n_tup_hot_upd / n_tup_upd, 1) FROM pg_stat_user_tables WHERE relid = \'"SlideJob"\'::regclass) WHERE hot_percent IS NULL;'

CALL make('');
VACUUM ANALYZE "SlideJob";
CALL measure('none', '');
:beat :beat :beat :beat :beat
:count_hot

CALL make('CREATE INDEX by_status ON "SlideJob" (status, "updatedAt")');
VACUUM ANALYZE "SlideJob";
CALL measure('(status, "updatedAt")', 'by_status');
:beat :beat :beat :beat :beat
:count_hot

CALL make('CREATE INDEX live ON "SlideJob" (id) WHERE status IN (''QUEUED'', ''PROCESSING'')');
VACUUM ANALYZE "SlideJob";
CALL measure('(id) WHERE status IN (live)', 'live');
:beat :beat :beat :beat :beat
:count_hot

SELECT variant, plan, round(page_ms, 2) AS page_ms, round(listing_ms, 1) AS listing_ms, index_kb, hot_percent
FROM figures ORDER BY n;

SET client_min_messages = error;
DROP SCHEMA indexes CASCADE;
