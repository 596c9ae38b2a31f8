//! The scan: entries that may be candidates under other ids are asked by their payloads.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures_util::future::try_join_all;
use salvage_core::scan::{Entry, LiveRows, Scan};
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{QueueReading, Snapshot, State};
use salvage_core::source::ResolvedSource;

use super::Pass;
use super::look::Pages;
use crate::ports::{Jobs, Outside, Queues, StoreFailure};

/// Entries whose payload was gone are looked for again when there are so many of them, and at the end of their queue. Few
/// enough to be kept, and many, because each look takes all ids of the queue.
const GONE_MAX: usize = 10_000;

/// Queues whose ids PostgreSQL is asked about at the same time.
const ASKED_AT_ONCE: usize = 2;

/// Why a scan ended early.
pub(crate) enum Broken {
    Queues(QueueFailure),
    Store(StoreFailure),
}

impl From<QueueFailure> for Broken {
    fn from(failure: QueueFailure) -> Self {
        Self::Queues(failure)
    }
}

impl From<StoreFailure> for Broken {
    fn from(failure: StoreFailure) -> Self {
        Self::Store(failure)
    }
}

impl<O: Outside> Pass<'_, O> {
    /// The scan: the ids pass by once more, and the payloads of those that say too little are read.
    pub(crate) async fn read_payloads(
        &self,
        scan: &mut Scan<'_>,
        snapshot: &Snapshot,
        sources: &[ResolvedSource],
    ) -> Result<(), Broken> {
        let queues: Vec<(String, &QueueReading)> = scan
            .queues()
            .into_iter()
            .filter_map(|queue| {
                let reading = snapshot.queues.get(&queue)?;
                Some((queue, reading))
            })
            .collect();
        for queues in queues.chunks(ASKED_AT_ONCE) {
            if !scan.is_needed() {
                break;
            }
            // Of what came with the snapshot PostgreSQL is asked at once, of a copy page by page.
            let asked = queues.iter().map(|(queue, reading)| {
                let here = reading.ids.values().flatten();
                self.live_rows_named_by(scan.named_by_rule(queue, here), sources)
            });
            let answers = try_join_all(asked).await?;
            for ((queue, reading), live) in queues.iter().zip(answers) {
                self.read_queue(scan, queue, reading, &live, sources).await?;
            }
        }
        Ok(())
    }

    /// The payloads of one queue. `here` are the live rows among those that the ids in the reading name.
    async fn read_queue(
        &self,
        scan: &mut Scan<'_>,
        queue: &str,
        reading: &QueueReading,
        here: &LiveRows<'_>,
        sources: &[ResolvedSource],
    ) -> Result<(), Broken> {
        let mut gone = Vec::new();
        // A page never spans two states: `active` comes last, whole.
        for state in State::ALL {
            let mut pages = Pages::of(reading, state);
            while scan.is_needed()
                && let Some(page) = pages.next(self.outside.queues()).await?
            {
                page.flaw.iter().for_each(|flaw| scan.flaw(queue, flaw));
                let ids = page.ids.iter();
                let live = match reading.copies.contains_key(&state) {
                    true => &self.live_rows_named_by(scan.named_by_rule(queue, ids), sources).await?,
                    false => here,
                };
                gone.extend(self.read_page(scan, queue, state, &page.ids, live).await?);
                if gone.len() >= GONE_MAX {
                    self.look_again_for(scan, queue, &std::mem::take(&mut gone)).await?;
                }
            }
        }
        Ok(self.look_again_for(scan, queue, &gone).await?)
    }

    /// Reads those payloads of a page of ids that must be read; returns the entries whose payload was gone.
    async fn read_page(
        &self,
        scan: &mut Scan<'_>,
        queue: &str,
        state: State,
        entry_ids: &[String],
        live: &LiveRows<'_>,
    ) -> Result<Vec<Entry>, QueueFailure> {
        let mut gone = Vec::new();
        for entries in scan.entries(queue, state, entry_ids, live).chunks(self.settings.page_size as usize) {
            if scan.is_needed() {
                gone.extend(self.read_entries(scan, queue, entries).await?);
            }
        }
        Ok(gone)
    }

    /// Those that are live rows.
    async fn live_rows_named_by<'i>(
        &self,
        named: BTreeMap<usize, Vec<Cow<'i, str>>>,
        sources: &[ResolvedSource],
    ) -> Result<LiveRows<'i>, StoreFailure> {
        let mut live = LiveRows::new();
        for (source, row_ids) in named {
            live.insert(source, self.outside.jobs().live_among(&sources[source], row_ids).await?);
        }
        Ok(live)
    }

    /// Returns the entries whose payload was gone.
    async fn read_entries(
        &self,
        scan: &mut Scan<'_>,
        queue: &str,
        entries: &[Entry],
    ) -> Result<Vec<Entry>, QueueFailure> {
        let ids: Vec<String> = entries.iter().map(|entry| entry.id.clone()).collect();
        let payloads = self.outside.queues().payloads(queue, &ids).await?;
        let read = entries.iter().zip(&payloads);
        let gone = read.filter_map(|(entry, payload)| scan.read(entry, payload.as_deref()).then_some(entry));
        Ok(gone.cloned().collect())
    }

    /// Looks once more for entries whose payload was gone. A queue at work has such entries in every scan.
    async fn look_again_for(
        &self,
        scan: &mut Scan<'_>,
        queue: &str,
        gone: &[Entry],
    ) -> Result<(), QueueFailure> {
        if gone.is_empty() || !scan.is_needed() {
            return Ok(());
        }
        let departed = self.departed_among(scan, queue, gone).await?;
        let (departed, listed): (Vec<_>, Vec<_>) =
            gone.iter().cloned().partition(|entry| departed.contains(entry.id.as_str()));
        departed.iter().for_each(|entry| scan.looked_again(entry, false));
        for entries in listed.chunks(self.settings.page_size as usize) {
            // By now there may be a payload: another job was added under the same id.
            for entry in self.read_entries(scan, queue, entries).await? {
                scan.looked_again(&entry, true);
            }
        }
        Ok(())
    }

    /// Those that are in no state any more, by another snapshot of their queue. Whatever flaw that one has is the queue's.
    async fn departed_among<'g>(
        &self,
        scan: &mut Scan<'_>,
        queue: &str,
        gone: &'g [Entry],
    ) -> Result<HashSet<&'g str>, QueueFailure> {
        let queues = BTreeSet::from([queue.to_owned()]);
        let mut snapshot = self.whole_snapshot(&queues).await?;
        if let Some(failure) = snapshot.server_fault() {
            return Err(failure);
        }
        let reading = snapshot.queues.remove(queue).unwrap_or_default();
        reading.flaws.iter().for_each(|flaw| scan.flaw(queue, flaw));
        if !reading.has_every_state() {
            let found = format!("not every state of queue {queue:?}");
            return Err(QueueFailure::UnexpectedReply { command: "MULTI", found });
        }
        let mut departed: HashSet<&str> = gone.iter().map(|entry| entry.id.as_str()).collect();
        for state in State::ALL {
            let mut pages = Pages::of(&reading, state);
            while let Some(page) = pages.next(self.outside.queues()).await? {
                page.flaw.iter().for_each(|flaw| scan.flaw(queue, flaw));
                for id in page.ids.iter() {
                    departed.remove(id.as_str());
                }
            }
        }
        Ok(departed)
    }
}
