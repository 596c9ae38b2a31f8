// Ops on workers, and the record of what they ran.
import pg from 'pg';

export function openWorkers({ Worker }, options) {
  const workers = new Map();
  const runs = recorder();

  const ops = {
    // startWorker{queue, worker, behaviour, delayMs, message, concurrency, lockDurationMs, stalledIntervalMs,
    //             maxStalledCount, record, database, onBegin, onStart, readRow, onEnd}
    // `worker` names it for stopWorker and release (default: the queue's name). `behaviour`:
    //   "complete" (default) after `delayMs` (default 0)
    //   "fail"     after `delayMs`, with `message`
    //   "hang"     never ends, and keeps its lock for as long as the process lives
    //   "hold"     ends when `release` is called
    //   "as-told"  what the job's own data.behaviour says: "complete" (default) or "fail"
    // `database` is a URL for four optional statements, each with $1 = data.jobId: `onBegin` runs first, for a record that
    // outlives this process ($2 = the entry as JSON: {queue, id, madeAt, attempt, data}); `onStart` next; then `readRow`
    // (its row is recorded with the run); `onEnd` after the work if it did not fail.
    // `record: false` for workers that run too often to remember.
    async startWorker(args) {
      const name = args.worker ?? args.queue;
      if (workers.has(name)) throw new Error(`worker ${name} is running already`);
      const worker = start(args);
      workers.set(name, worker);
      await worker.bull.waitUntilReady();
    },

    // stopWorker{worker, force}: ends after its current jobs, or with `force` at once, leaving them active.
    async stopWorker({ worker: name, force = false }) {
      const worker = find(name);
      workers.delete(name);
      await worker.close(force);
    },

    // release{worker}: lets the held jobs end; later ones of this worker are not held any more.
    release: ({ worker: name }) => find(name).release(),

    // runs{queue, job, jobId, ended} → what ran so far, oldest first, of every queue and job that is not named:
    //   {queue, id, name, data, attemptsMade, startedAt, row, endedAt, outcome: null | "completed" | "failed"}.
    // `job` is the entry's id, `jobId` the row's (data.jobId). `ended`: only runs that ended. Times: ms since 1970.
    runs: filter => runs.list(filter),

    // waitRuns{count, deadlineMs, …filter as for runs} → the runs, once there are `count` (default 1). An error that
    // says how many there were after `deadlineMs` (default 30000).
    waitRuns: ({ count = 1, deadlineMs = 30_000, ...filter }) => runs.wait(filter, count, deadlineMs),
  };

  function find(name) {
    const worker = workers.get(name);
    if (!worker) throw new Error(`no worker ${name}; there are ${[...workers.keys()].join(', ') || 'none'}`);
    return worker;
  }

  function start(args) {
    const { behaviour = 'complete', delayMs = 0, message = 'failed on purpose', record = true } = args;
    let release;
    const released = new Promise(resolve => (release = resolve));
    const behaviours = {
      complete: () => after(delayMs),
      fail: () => after(delayMs).then(() => Promise.reject(new Error(message))),
      hang: () => new Promise(() => {}),
      hold: () => released,
      'as-told': job => behaviours[job.data.behaviour ?? 'complete'](job),
    };
    const work = behaviours[behaviour];
    if (!work) throw new Error(`no such behaviour: ${behaviour}`);
    const database = args.database && new pg.Pool({ connectionString: args.database, max: args.concurrency ?? 1 });
    database?.on('error', error => console.error(`worker on ${args.queue}: ${error.message}`));
    const query = async (sql, job, ...more) => sql && (await database.query(sql, [job.data.jobId, ...more])).rows[0];
    const told = job => JSON.stringify(
      { queue: args.queue, id: job.id, madeAt: job.timestamp, attempt: job.attemptsMade, data: job.data });

    async function process(job) {
      const run = begun(args.queue, job);
      if (record) runs.begin(run);
      try {
        await query(args.onBegin, job, told(job));
        await query(args.onStart, job);
        run.row = (await query(args.readRow, job)) ?? null;
        await work(job);
        await query(args.onEnd, job);
        run.outcome = 'completed';
      } catch (error) {
        run.outcome = 'failed';
        throw error;
      } finally {
        run.endedAt = Date.now();
        if (record) runs.changed();
      }
    }

    const bull = new Worker(args.queue, process, {
      ...options,
      concurrency: args.concurrency ?? 1,
      lockDuration: args.lockDurationMs ?? 30_000,
      stalledInterval: args.stalledIntervalMs ?? 30_000,
      maxStalledCount: args.maxStalledCount ?? 1,
    });
    bull.on('error', error => console.error(`worker on ${args.queue}: ${error.message}`));
    return {
      bull,
      release,
      async close(force) {
        await bull.close(force);
        // A run that was left behind keeps its connection, and the pool would wait for it.
        if (!force) await database?.end();
      },
    };
  }

  return { ops, close: () => Promise.all([...workers.values()].map(worker => worker.close(false))) };
}

function begun(queue, job) {
  const { id, name, data, attemptsMade } = job;
  return { queue, id, name, data, attemptsMade, startedAt: Date.now(), row: null, endedAt: null, outcome: null };
}

// Remembers runs and wakes those who wait for some.
function recorder() {
  const all = [];
  const waiting = new Set();

  function list({ queue, job, jobId, ended = false } = {}) {
    return all.filter(run =>
      (queue === undefined || run.queue === queue) && (job === undefined || run.id === job) &&
      (jobId === undefined || run.data?.jobId === jobId) && (!ended || run.endedAt !== null));
  }

  function changed() {
    for (const look of waiting) look();
  }

  function wait(filter, count, deadlineMs) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => done(reject, new Error(
        `${list(filter).length} of ${count} runs of ${JSON.stringify(filter)} within ${deadlineMs} ms`)), deadlineMs);
      const done = (settle, value) => { clearTimeout(timer); waiting.delete(look); settle(value); };
      const look = () => { const found = list(filter); if (found.length >= count) done(resolve, found); };
      waiting.add(look);
      look();
    });
  }

  return { list, changed, wait, begin(run) { all.push(run); changed(); } };
}

const after = ms => new Promise(resolve => (ms > 0 ? setTimeout(resolve, ms) : resolve()));
