// Ops that keep a queue busy until they are told to stop: what else goes on in a queue while somebody looks at it.

// Rounds follow each other at this distance, so that there is time for workers in between.
const ROUND_MS = 10;

export function openTraffic(queue, { addFlow }) {
  const running = new Map();

  // Repeats `round` until `stop`; its counts are what `stop` returns.
  function start(name, round) {
    if (running.has(name)) throw new Error(`${name} is running already`);
    const counts = {};
    let goesOn = true;
    const ended = (async () => {
      while (goesOn) {
        await round(counts);
        await new Promise(resolve => setTimeout(resolve, ROUND_MS));
      }
    })();
    // Whoever stops it hears of a failure; until then it is nobody's unhandled rejection.
    ended.catch(() => {});
    running.set(name, async () => { goesOn = false; await ended; return counts; });
  }

  async function stop(name) {
    const end = running.get(name);
    if (!end) throw new Error(`${name} is not running`);
    running.delete(name);
    return end();
  }

  const ops = {
    // startMoves{queue, jobs: [id, …], child}: moves the jobs about without ever removing them (changePriority; pause and
    // resume of the whole queue), and meanwhile adds and removes others: waiting and delayed ones, and flows whose child
    // runs in queue `child`. No worker may finish `jobs`.
    startMoves({ queue: name, jobs, child }) {
      let next = 0;
      start(`moves ${name}`, async counts => {
        const count = kind => { counts[kind] = (counts[kind] ?? 0) + 1; };
        const q = queue(name);
        for (let n = 0; n < 4; n++) {
          const job = await q.getJob(jobs[next++ * 7 % jobs.length]);
          // Not in a state that has priorities just now: refused by some versions, ignored by others.
          await job.changePriority({ priority: next % 5 }).then(() => count('priority'), () => {});
        }
        const delayed = await q.add('passing', {}, { delay: 60_000 });
        await addFlow({ flow: {
          name: 'passing', queueName: name, data: { behaviour: 'complete' }, opts: { removeOnComplete: true },
          children: [{ name: 'passing', queueName: child, data: { behaviour: 'complete' },
            opts: { removeOnComplete: true } }],
        } });
        count('flow');
        await q.pause();
        count('pause');
        const waiting = await q.add('passing', {}, {});
        await waiting.remove();
        count('removal');
        await q.resume();
        await delayed.remove();
        count('removal');
      });
    },
    // stopMoves{queue} → how often each was done: {priority, pause, removal, flow}. The queue is left resumed.
    stopMoves: ({ queue: name }) => stop(`moves ${name}`),

    // startBacklog{queue, jobs, removeOnComplete}: keeps about that many jobs waiting, without data.jobId.
    startBacklog({ queue: name, jobs, removeOnComplete = true }) {
      start(`backlog ${name}`, async counts => {
        const { waiting } = await queue(name).getJobCounts('waiting');
        const missing = Math.max(0, jobs - waiting);
        await queue(name).addBulk(Array.from({ length: missing }, () => (
          { name: 'ordinary', data: { ordinary: true }, opts: { removeOnComplete } })));
        counts.added = (counts.added ?? 0) + missing;
      });
    },
    // stopBacklog{queue} → {added}
    stopBacklog: ({ queue: name }) => stop(`backlog ${name}`),
  };

  return { ops, close: () => Promise.all([...running.keys()].map(stop)) };
}
