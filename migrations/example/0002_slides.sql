-- Decks and the jobs that generate their slides. A deck is the parent of its jobs: what the product shows.
-- Text ids and `timestamp(3)` holding UTC, as Prisma makes them. No foreign keys: a deck may be deleted while its job is
-- still queued, and recovery has to cope with that.
-- Lock: ACCESS EXCLUSIVE on the new tables only, which nobody can be using yet.

CREATE TABLE "SlideDeck" (
    id             text           PRIMARY KEY,
    title          text           NOT NULL,
    status         "DeckStatus"   NOT NULL DEFAULT 'DRAFT',
    "exportStatus" "ExportStatus" NOT NULL DEFAULT 'NONE',
    error          text,
    "updatedAt"    timestamp(3)   NOT NULL DEFAULT CURRENT_TIMESTAMP
);

CREATE TABLE "SlideJob" (
    id          text         PRIMARY KEY,
    "deckId"    text         NOT NULL,
    type        text         NOT NULL,
    status      "JobStatus"  NOT NULL DEFAULT 'QUEUED',
    progress    integer      NOT NULL DEFAULT 0,
    error       text,
    "createdAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updatedAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP
);
