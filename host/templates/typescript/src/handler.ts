// The domain `{{name}}`: what it owns, and whether a lost job can be put back.

import type { Decision, HandlerManifest, Input, Job, ParentChange } from 'salvage:handler/types@0.1.0';
import { type Options, fail, reason, requeue, rows, text } from './salvage.js';

// Only from BUILDING: an item that is ready stays so, whatever becomes of a later job.
const itemFails: ParentChange = {
  table: '{{snake}}_items',
  key: 'id',
  jobColumn: 'item_id',
  statusColumn: 'status',
  from: ['BUILDING'],
  to: 'FAILED',
};

// Names are those of the database, without quotes. `salvage handler check` holds them against it.
const manifest: HandlerManifest = {
  domain: '{{name}}',
  description: 'Jobs of {{name}}.',
  sources: [
    {
      name: 'jobs',
      table: {
        table: '{{snake}}_jobs',
        id: 'id',
        status: 'status',
        updatedAt: 'updated_at',
        jobType: 'type',
        error: 'error',
        extraColumns: [],
        queued: 'QUEUED',
        processing: 'PROCESSING',
        failed: 'FAILED',
      },
      // `restartSafe: false` for a type that must not be begun twice.
      jobTypes: [{ name: 'BUILD', restartSafe: true, onFail: itemFails }],
      // Every queue in which a job of this table may be; one that is missing makes jobs look lost that are not.
      // An entry of another name than these that carries no row's id is taken for somebody else's.
      queues: [
        {
          name: '{{name}}',
          jobId: '{{name}}-{id}',
          payloadKey: 'jobId',
          jobNames: { tag: 'only', val: ['build'] },
          foreignNames: [],
        },
      ],
      // Rows that `decide` is shown.
      reads: [
        {
          name: 'item',
          table: '{{snake}}_items',
          columns: ['id', 'title'],
          matchColumn: 'id',
          jobColumn: 'item_id',
          orderBy: [],
          limit: 1,
        },
      ],
    },
  ],
};

const options: Options = { attempts: 3, backoff: { type: 'exponential', delay: 5000 } };

// Puts the job back if its item is still there. A pure function: no clock, no randomness, nothing but its arguments.
function decide(job: Job, inputs: Input[]): Decision {
  const item = rows(inputs, 'item')[0];
  if (item === undefined) {
    return fail(reason(job, 'The item of this job no longer exists, so it cannot be built.'));
  }
  const data = { jobId: job.id, itemId: text(item, 'id'), title: text(item, 'title') };
  return requeue('{{name}}', 'build', data, options);
}

export const domain = { describe: () => manifest, decide };
