// Ops on queues. Naming a queue opens a `Queue`, which writes its `meta` key: an op on a queue brings it into being.

export function openQueues({ Queue, FlowProducer }, options) {
  const opened = new Map();
  let flows;

  function queue(name) {
    if (!opened.has(name)) {
      const fresh = new Queue(name, options);
      fresh.on('error', error => console.error(`queue ${name}: ${error.message}`));
      opened.set(name, fresh);
    }
    return opened.get(name);
  }

  async function job(args) {
    const found = await queue(args.queue).getJob(args.job);
    if (!found) throw new Error(`no job ${args.job} in ${args.queue}`);
    return found;
  }

  const ops = {
    // add{queue, name, data, opts} → the entry's id.
    add: async ({ queue: q, name, data, opts }) => (await queue(q).add(name, data, opts)).id,

    // addMany{queue, jobs: [{name, data, opts}]} → their ids, in order.
    addMany: async ({ queue: q, jobs }) => (await queue(q).addBulk(jobs)).map(added => added.id),

    // addFlow{flow: {name, queueName, data, opts, children: […]}} → {id, children: [{id, children}, …]}.
    async addFlow({ flow }) {
      flows ??= new FlowProducer(options);
      const ids = node => ({ id: node.job.id, children: (node.children ?? []).map(ids) });
      return ids(await flows.add(flow));
    },

    // upsertScheduler{queue, scheduler, repeat: {every} or {pattern}, template: {name, data, opts}} → id of its next
    // job. BullMQ from 5.16 on.
    upsertScheduler: async ({ queue: q, scheduler, repeat, template }) =>
      (await queue(q).upsertJobScheduler(scheduler, repeat, template)).id,

    // state{queue, job} → "waiting", "active", …, "unknown" if it is nowhere.
    async state({ queue: q, job: id }) {
      const found = await queue(q).getJob(id);
      return found ? found.getState() : 'unknown';
    },

    // states{queue, jobs: [id, …]} → the state of each, in their order. Each is asked for on its own, at an instant of its
    // own; `getState` itself is atomic.
    states: ({ queue: q, jobs }) => Promise.all(jobs.map(id => ops.state({ queue: q, job: id }))),

    // pagedScan{queue, page} → data.jobId of every job found by paging `getJobs` (200 by default), state by state and
    // `active` last. It is here to be wrong: what moves against the direction of reading is missed.
    async pagedScan({ queue: q, page = 200 }) {
      const found = new Set();
      for (const state of ['waiting', 'waiting-children', 'delayed', 'paused', 'prioritized', 'active']) {
        for (let from = 0; ; from += page) {
          const jobs = await queue(q).getJobs([state], from, from + page - 1);
          for (const each of jobs) if (each?.data?.jobId !== undefined) found.add(String(each.data.jobId));
          if (jobs.length < page) break;
        }
      }
      return [...found];
    },

    // job{queue, job} → the entry as BullMQ reads it, or null.
    async job({ queue: q, job: id }) {
      const found = await queue(q).getJob(id);
      if (!found) return null;
      const { name, data, opts, attemptsMade, timestamp, delay, failedReason } = found;
      return { id, name, data, opts, attemptsMade, timestamp, delay, failedReason };
    },

    // counts{queue} → {waiting: n, active: n, …}.
    counts: ({ queue: q }) => queue(q).getJobCounts(),

    pause: ({ queue: q }) => queue(q).pause(),
    resume: ({ queue: q }) => queue(q).resume(),

    // obliterate{queue}: removes everything, active jobs included.
    obliterate: ({ queue: q }) => queue(q).obliterate({ force: true }),

    // remove{queue, job}
    remove: async args => (await job(args)).remove(),
    // retry{queue, job, from}: puts a finished entry back to waiting; `from` is "failed" (default) or "completed".
    retry: async args => (await job(args)).retry(args.from),
    // promote{queue, job}: lets a delayed entry run now.
    promote: async args => (await job(args)).promote(),
    // changePriority{queue, job, priority}
    changePriority: async args => (await job(args)).changePriority({ priority: args.priority }),
  };

  async function close() {
    await Promise.all([...opened.values()].map(each => each.close()));
    await flows?.close();
  }

  return { ops, queue, close };
}
