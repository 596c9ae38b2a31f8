-- Jobs that export a deck or a video to a file. Their outcome is shown in the parent's "exportStatus", never in its
-- status: a deck whose PDF failed is still READY. The third kind of id, bigint, is here.
-- Lock: ACCESS EXCLUSIVE on the new tables only, which nobody can be using yet.

CREATE TABLE "SlideExportJob" (
    id          text         PRIMARY KEY,
    "deckId"    text         NOT NULL,
    format      text         NOT NULL,
    status      "JobStatus"  NOT NULL DEFAULT 'QUEUED',
    progress    integer      NOT NULL DEFAULT 0,
    error       text,
    "createdAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updatedAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP
);

CREATE TABLE "VideoExportJob" (
    id          bigint       PRIMARY KEY,
    "videoId"   text         NOT NULL,
    format      text         NOT NULL,
    status      "JobStatus"  NOT NULL DEFAULT 'QUEUED',
    progress    integer      NOT NULL DEFAULT 0,
    error       text,
    "createdAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "updatedAt" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP
);
