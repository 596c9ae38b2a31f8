// A long-lived process that does with real BullMQ what tests and the demo ask for.
//
// stdin:  one JSON object a line, {"id": 1, "op": "add", …}; what each op takes is said where it is defined.
// stdout: one line an answer, {"id": 1, "result": …} or {"id": 1, "error": "…"}. Commands run side by side, so answers
//         come in the order in which the work ends.
// stderr: whatever BullMQ complains about on its own.
//
// The first command is `open`. The process ends when stdin does, so it never outlives the one who started it; to let
// all its workers die at once, kill it.
import { createInterface } from 'node:readline';
import { openQueues } from './queues.mjs';
import { openTraffic } from './traffic.mjs';
import { openWorkers } from './workers.mjs';

let ops = { open };

// open{url, prefix, bullmq, cluster}: connects. `bullmq` is a name from package.json, e.g. "bullmq-4" (default "bullmq",
// 5.x). With `cluster` the URL is that of one of a cluster's nodes.
async function open({ url, prefix = 'bull', bullmq = 'bullmq', cluster = false }) {
  const library = await import(bullmq);
  const { default: IORedis } = await import('ioredis');
  const settings = { maxRetriesPerRequest: null };
  const connection = cluster ? new IORedis.Cluster([url], { redisOptions: settings }) : new IORedis(url, settings);
  connection.on('error', error => console.error(`redis: ${error.message}`));
  const options = { connection, prefix };
  const queues = openQueues(library, options);
  const workers = openWorkers(library, options);
  const traffic = openTraffic(queues.queue, queues.ops);
  ops = {
    ...queues.ops,
    ...workers.ops,
    ...traffic.ops,
    // close{}: ends workers after their current jobs, then the connections.
    async close() {
      await traffic.close();
      await workers.close();
      await queues.close();
      connection.disconnect();
    },
  };
}

async function answer(line) {
  const { id, op, ...args } = JSON.parse(line);
  try {
    if (!ops[op]) throw new Error(`no such op: ${op}; there are ${Object.keys(ops).join(', ')}`);
    return { id, result: (await ops[op](args)) ?? null };
  } catch (error) {
    return { id, error: `${op}: ${error.message}` };
  }
}

const commands = createInterface({ input: process.stdin });
commands.on('line', async line => process.stdout.write(JSON.stringify(await answer(line)) + '\n'));
commands.on('close', () => process.exit(0));
