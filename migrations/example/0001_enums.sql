-- The status types that the application's tables share, named as Prisma names them.
-- First, because every table after this one uses them.
-- Lock: no table is locked; CREATE TYPE writes catalog rows only.

CREATE TYPE "JobStatus" AS ENUM ('QUEUED', 'PROCESSING', 'COMPLETED', 'FAILED', 'CANCELLED');
CREATE TYPE "DeckStatus" AS ENUM ('DRAFT', 'GENERATING', 'READY', 'FAILED');
CREATE TYPE "VideoStatus" AS ENUM ('DRAFT', 'COMPOSING', 'READY', 'FAILED', 'CANCELLED');
CREATE TYPE "ExportStatus" AS ENUM ('NONE', 'EXPORTING', 'READY', 'FAILED');
