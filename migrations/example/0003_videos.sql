-- Videos, the tracks a composition is rebuilt from, and the jobs that compose them.
-- `narration_jobs` comes from another team: snake_case, uuid ids, text statuses and `timestamptz`, so that one
-- application holds both conventions side by side.
-- Lock: ACCESS EXCLUSIVE on the new tables only, which nobody can be using yet.

CREATE TABLE "Video" (
    id               text           PRIMARY KEY,
    title            text           NOT NULL,
    status           "VideoStatus"  NOT NULL DEFAULT 'DRAFT',
    "exportStatus"   "ExportStatus" NOT NULL DEFAULT 'NONE',
    -- NONE, NARRATING, READY or FAILED; text, not an enum, and unchecked.
    narration_status text           NOT NULL DEFAULT 'NONE',
    error            text,
    "updatedAt"      timestamp(3)   NOT NULL DEFAULT CURRENT_TIMESTAMP
);

CREATE TABLE "VideoTrack" (
    id          text    PRIMARY KEY,
    "videoId"   text    NOT NULL,
    position    integer NOT NULL,
    kind        text    NOT NULL,
    "sourceUrl" text,
    "startMs"   integer,
    "endMs"     integer
);

-- The tracks of a video in order: how the application, and a composition that is rebuilt, reads them.
CREATE INDEX "VideoTrack_videoId_position" ON "VideoTrack" ("videoId", position);

CREATE TABLE "VideoJob" (
    id          text         PRIMARY KEY,
    "videoId"   text         NOT NULL,
    type        text         NOT NULL,
    status      "JobStatus"  NOT NULL DEFAULT 'QUEUED',
    progress    integer      NOT NULL DEFAULT 0,
    error       text,
    "createdAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updatedAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP
);

CREATE TABLE narration_jobs (
    id         uuid        PRIMARY KEY,
    video_id   text        NOT NULL,
    kind       text        NOT NULL,
    -- QUEUED, PROCESSING, COMPLETED, FAILED or CANCELLED; text, not an enum, and unchecked.
    status     text        NOT NULL DEFAULT 'QUEUED',
    progress   integer     NOT NULL DEFAULT 0,
    error      text,
    created_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP
);
