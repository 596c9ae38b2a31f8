// The domain `exports`: two job tables with their types and queues, and no export that could be put back.
//
// A failed export changes the export status of its deck or video and nothing else: the deck that could not be exported is as
// READY as before, and its `error` speaks of its generation.

import type {
  Decision,
  HandlerManifest,
  Job,
  ParentChange,
  Source,
} from 'salvage:handler/types@0.1.0';
import { fail, reason } from './salvage.js';

// What an export needs beside its row is in its payload alone.
const sources: Source[] = [
  source('slide-export', 'SlideExportJob', ['PDF', 'PPTX'], ['slide-export', 'slide-generation'], {
    table: 'SlideDeck',
    jobColumn: 'deckId',
  }),
  source('video-export', 'VideoExportJob', ['MP4', 'GIF'], ['video-export', 'video-composition'], {
    table: 'Video',
    jobColumn: 'videoId',
  }),
];

// What both have in common; the format of the file is the job type.
function source(
  name: string,
  table: string,
  formats: string[],
  queues: string[],
  parent: { table: string; jobColumn: string },
): Source {
  const onFail: ParentChange = {
    ...parent,
    key: 'id',
    statusColumn: 'exportStatus',
    from: ['EXPORTING'],
    to: 'FAILED',
  };
  return {
    name,
    table: {
      table,
      id: 'id',
      status: 'status',
      updatedAt: 'updatedAt',
      jobType: 'format',
      progress: 'progress',
      error: 'error',
      extraColumns: [],
      queued: 'QUEUED',
      processing: 'PROCESSING',
      failed: 'FAILED',
    },
    jobTypes: formats.map((format) => ({ name: format, restartSafe: true, onFail })),
    queues: queues.map((queue) => ({
      name: queue,
      jobId: 'export-{id}',
      payloadKey: 'jobId',
      jobNames: { tag: 'only', val: ['export'] },
      foreignNames: [],
    })),
    reads: [],
  };
}

const manifest: HandlerManifest = {
  domain: 'exports',
  description: 'Exports of slide decks and videos to files.',
  sources,
};

function decide(job: Job): Decision {
  const formats = sources.find((source) => source.name === job.source)?.jobTypes ?? [];
  if (!formats.some((format) => format.name === job.type)) {
    throw new Error(`no rule for job type \`${job.type}\` of source \`${job.source}\``);
  }
  return fail(
    reason(
      job,
      `This ${job.type} export cannot be resumed because its render settings are not stored; please export again.`,
    ),
  );
}

export const domain = { describe: () => manifest, decide };
