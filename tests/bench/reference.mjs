// The recovery look-up that Salvage replaces, as a Node program would do it with `bullmq` and `pg`: the procedure to beat,
// not a safe one. It judges by reads that do not belong to one instant.
//
//   1. list the candidates: live rows that nobody touched for an hour
//   2. ask for each by its current id: getJob, then getState, one after the other
//   3. search what was not found by `data.jobId` in all queues: getJobs, 200 at a time, state by state, `active` last
//
// Environment: DATABASE_URL, REDIS_PORT, NODE_MODULES (a folder in which `bullmq`, `ioredis` and `pg` are installed).
// Prints one JSON object. Times begin when all connections stand.
import { createRequire } from 'node:module';

const require = createRequire(`${process.env.NODE_MODULES}/`);
const { Queue } = require('bullmq');
const IORedis = require('ioredis').default;
const { Client } = require('pg');

const STALE_MS = 3_600_000;
const PAGE = 200;
const SCHEDULED = new Set(['waiting', 'waiting-children', 'delayed', 'active', 'paused', 'prioritized']);
const SCAN_ORDER = ['waiting', 'waiting-children', 'delayed', 'paused', 'prioritized', 'active'];

// The job tables of `migrations/example`, each with its queue and its id rule.
const SOURCES = [
  { table: '"SlideJob"', updatedAt: '"updatedAt"', queue: 'slide-generation', entry: id => `slide-${id}` },
  { table: '"VideoJob"', updatedAt: '"updatedAt"', queue: 'video-composition', entry: id => `video-${id}` },
  { table: 'narration_jobs', updatedAt: 'updated_at', queue: 'narration', entry: id => id },
  { table: '"SlideExportJob"', updatedAt: '"updatedAt"', queue: 'slide-export', entry: id => `export-${id}` },
  { table: '"VideoExportJob"', updatedAt: '"updatedAt"', queue: 'video-export', entry: id => `export-${id}` },
];

let commandsSent = 0;
const sendCommand = IORedis.prototype.sendCommand;
IORedis.prototype.sendCommand = function (...args) {
  commandsSent += 1;
  return sendCommand.apply(this, args);
};

const connection = new IORedis({
  host: '127.0.0.1', port: Number(process.env.REDIS_PORT), maxRetriesPerRequest: 1, lazyConnect: true,
});
await connection.connect();
const queues = new Map();
for (const { queue } of SOURCES) {
  const opened = new Queue(queue, { connection, skipMetasUpdate: true });
  await opened.waitUntilReady();
  queues.set(queue, opened);
}
const db = new Client({ connectionString: process.env.DATABASE_URL });
await db.connect();

commandsSent = 0;
const startedAt = performance.now();
const candidates = await listCandidates();
const listedAt = performance.now();
const missing = new Map(candidates.map(candidate => [candidate.id, candidate]));
for (const candidate of candidates) await lookUp(candidate);
const lookedUpAt = performance.now();
const direct = candidates.length - missing.size;
const pages = await scan();
const endedAt = performance.now();

console.log(JSON.stringify({
  bullmq: require('bullmq/package.json').version,
  candidates: candidates.length,
  direct,
  by_payload: candidates.length - direct - missing.size,
  absent: missing.size,
  pages,
  commands_sent: commandsSent,
  select_ms: listedAt - startedAt,
  direct_ms: lookedUpAt - listedAt,
  scan_ms: endedAt - lookedUpAt,
  total_ms: endedAt - startedAt,
}));

await db.end();
for (const queue of queues.values()) await queue.close();
connection.disconnect();

async function listCandidates() {
  const candidates = [];
  const cutoff = new Date(Date.now() - STALE_MS).toISOString();
  for (const { table, updatedAt, queue, entry } of SOURCES) {
    const { rows } = await db.query(
      `SELECT id::text, status::text, ${updatedAt}::text AS updated_at FROM ${table}
       WHERE status IN ('QUEUED', 'PROCESSING') AND ${updatedAt} < $1 ORDER BY ${updatedAt}, id`, [cutoff]);
    for (const row of rows) candidates.push({ id: row.id, queue, entry: entry(row.id) });
  }
  return candidates;
}

async function lookUp({ id, queue, entry }) {
  const job = await queues.get(queue).getJob(entry);
  if (job && SCHEDULED.has(await job.getState())) missing.delete(id);
}

async function scan() {
  let pages = 0;
  for (const state of SCAN_ORDER) {
    for (const queue of queues.values()) {
      for (let start = 0; missing.size > 0; start += PAGE) {
        const jobs = await queue.getJobs([state], start, start + PAGE - 1);
        pages += 1;
        for (const job of jobs) missing.delete(job?.data?.jobId);
        if (jobs.length < PAGE) break;
      }
    }
  }
  return pages;
}
