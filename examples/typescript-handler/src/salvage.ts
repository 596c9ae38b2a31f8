// What every handler written in TypeScript shares: rows out of JSON, and decisions in the contract's form.

import type { Decision, Input, Job } from 'salvage:handler/types@0.1.0';

// Bigint, numeric and uuid are strings, timestamps RFC 3339 in UTC with microseconds, NULL is null.
export type Row = Record<string, unknown>;

// What BullMQ may be told of a job that is put back. There is no delay and no id, which are the host's.
export interface Options {
  attempts?: number;
  backoff?: number | { type: 'fixed' | 'exponential'; delay: number };
  priority?: number;
  removeOnComplete?: boolean | number | { age?: number; count?: number };
  removeOnFail?: boolean | number | { age?: number; count?: number };
  stackTraceLimit?: number;
  keepLogs?: number;
}

// Of a worker's error only the beginning helps.
const FAILED_REASON_CHARS_MAX = 300;

// The mapped and extra columns of the job's row.
export function columns(job: Job): Row {
  return JSON.parse(job.columns) as Row;
}

// The rows of the read of this name, in its order.
export function rows(inputs: Input[], name: string): Row[] {
  const input = inputs.find((input) => input.name === name);
  if (input === undefined) throw new Error(`input ${name} was not given (declare a read of that name)`);
  return input.rows.map((row) => JSON.parse(row) as Row);
}

// A text column that is not NULL.
export function text(row: Row, column: string): string {
  const value = row[column];
  if (typeof value !== 'string') throw new Error(`column ${column}: expected text, found ${kind(value)}`);
  return value;
}

function kind(value: unknown): string {
  if (value === undefined) return 'nothing (name it in the manifest)';
  return value === null ? 'NULL' : typeof value;
}

// Puts the job back. `data` carries the job's id, as text, under the queue's payload key.
export function requeue(queue: string, name: string, data: Row, options: Options = {}): Decision {
  return { tag: 'requeue', val: { queue, name, data: JSON.stringify(data), options: JSON.stringify(options) } };
}

// Marks the job failed. The reason is one sentence that a user understands; see `reason`.
export function fail(reason: string): Decision {
  return { tag: 'fail', val: reason };
}

// Leaves the job for now. The reason tells the operator what has to change.
export function hold(reason: string): Decision {
  return { tag: 'hold', val: reason };
}

// A fail reason that also tells what the queue knows: `sentence` says why the job cannot be put back.
export function reason(job: Job, sentence: string): string {
  const known = knownOf(job);
  return known === undefined ? sentence : `${sentence.replace(/\.+$/, '')} (${known}).`;
}

function knownOf(job: Job): string | undefined {
  if (job.residue === 'completed') {
    return 'the queue shows the job as completed, but its result was never recorded';
  }
  if (job.residue !== 'failed') return undefined;
  const words = (job.failedReason ?? '').split(/\s+/).filter((word) => word !== '').join(' ');
  if (words === '') return 'the queue shows the job as failed';
  const chars = [...words];
  const cut = chars.length > FAILED_REASON_CHARS_MAX;
  return `its last attempt failed: ${cut ? `${chars.slice(0, FAILED_REASON_CHARS_MAX).join('')}…` : words}`;
}
