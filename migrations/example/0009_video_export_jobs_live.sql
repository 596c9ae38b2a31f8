-- no-transaction
-- CREATE INDEX CONCURRENTLY refuses to run in one; hence also one statement a file.
-- The live rows of "VideoExportJob", which every pass of Salvage lists: a few among millions. Partial and on id
-- alone, so that it stays small and a worker's progress write (status and id unchanged) stays HOT.
-- Lock: SHARE UPDATE EXCLUSIVE on "VideoExportJob"; reads and writes go on while it builds.
-- If it fails half-way it leaves an invalid index behind: DROP INDEX CONCURRENTLY "VideoExportJob_live", then run again.

CREATE INDEX CONCURRENTLY "VideoExportJob_live" ON "VideoExportJob" (id) WHERE status IN ('QUEUED', 'PROCESSING');
