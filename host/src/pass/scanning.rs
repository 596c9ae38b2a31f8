//! The scan: entries that may be candidates under other ids are asked by their payloads.

use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

use futures_util::future::{join, try_join_all};
use salvage_core::naming::{Entry, Named, NamedRows, Naming};
use salvage_core::scan::Scan;
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{Flaw, IdsCopy, QueueReading, Snapshot, State};
use salvage_core::source::ResolvedSource;

use super::Pass;
use super::look::{IDS_PER_PAGE, Pages};
use crate::ports::{Jobs, Outside, Queues, StoreFailure};

/// Entries whose payload was gone are looked for again when there are so many of them, and at the end of their queue. Few
/// enough to be kept, and many, because each look takes all ids of the queue.
const GONE_MAX: usize = 10_000;

/// Portions about which PostgreSQL is asked at the same time, while payloads of those before are read.
const PORTIONS_AT_ONCE: usize = 2;

/// Ids of one queue about which PostgreSQL is asked at once: all those that came with the snapshot, or a page of a copy.
struct Portion<'s> {
    queue: &'s str,
    reading: &'s QueueReading,
    /// `None`: what came with the snapshot.
    page: Option<CopyPage<'s>>,
    is_last: bool,
}

/// Where a page of a copy begins.
struct CopyPage<'s> {
    state: State,
    copy: &'s IdsCopy,
    from: usize,
}

/// The entries of a portion whose payloads must be read, in the order of their states.
struct Wanted<'s> {
    portion: &'s Portion<'s>,
    unclear: Unclear,
    flaw: Option<Flaw>,
}

/// Entries by what their ids tell.
struct Unclear {
    entries: Vec<Entry>,
    /// How many others there are, whose ids name live rows.
    clear: usize,
}

/// What is left to the end of a queue.
#[derive(Default)]
struct Later {
    /// Entries of `active`: they are the ones that vanish while others are read.
    active: Vec<Entry>,
    /// Entries whose payload was gone.
    gone: Vec<Entry>,
}

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
        let (naming, queues) = (scan.naming(), scan.queues());
        let readings = queues.iter().filter_map(|queue| Some((queue.as_str(), snapshot.queues.get(queue)?)));
        let portions: Vec<Portion<'_>> =
            readings.flat_map(|(queue, reading)| portions(queue, reading)).collect();
        let (mut wanted, mut later) = (vec![], Later::default());
        for next in portions.chunks(PORTIONS_AT_ONCE).chain([&[][..]]) {
            // Both to their end: a transaction that nobody goes on with while payloads are read would be ended for idling.
            let asked = try_join_all(next.iter().map(|portion| self.ask(&naming, portion, sources)));
            let (read, asked) = join(self.read_portions(scan, wanted, &mut later), asked).await;
            read?;
            if !scan.is_needed() {
                break;
            }
            wanted = asked?;
        }
        self.prove(scan, sources).await
    }

    /// Finds out which of the rows exist that payloads name beside candidates' ids.
    async fn prove(&self, scan: &mut Scan<'_>, sources: &[ResolvedSource]) -> Result<(), Broken> {
        for (source, row_ids) in scan.unproven() {
            let existing = self.outside.jobs().existing(&sources[source], &row_ids).await?;
            scan.proven(source, &existing);
        }
        Ok(())
    }

    /// Finds out which entries of a portion must be read.
    async fn ask<'s>(
        &self,
        naming: &Naming<'_>,
        portion: &'s Portion<'s>,
        sources: &[ResolvedSource],
    ) -> Result<Wanted<'s>, Broken> {
        let Portion { queue, reading, page, .. } = portion;
        let (unclear, flaw) = match page {
            None => {
                let states = State::ALL.iter().filter_map(|state| reading.ids.get_key_value(state));
                let ids = states.flat_map(|(state, ids)| ids.iter().map(|id| (*state, id)));
                (self.unclear(naming, queue, ids, sources).await?, None)
            }
            Some(CopyPage { state, copy, from }) => {
                let page = self.outside.queues().page(copy, *from, IDS_PER_PAGE).await?;
                let ids = page.ids.iter().map(|id| (*state, id));
                (self.unclear(naming, queue, ids, sources).await?, page.flaw)
            }
        };
        Ok(Wanted { portion, unclear, flaw })
    }

    /// Those entries whose ids do not name a live row.
    async fn unclear<'i>(
        &self,
        naming: &Naming<'_>,
        queue: &str,
        ids: impl Iterator<Item = (State, &'i String)> + Clone,
        sources: &[ResolvedSource],
    ) -> Result<Unclear, StoreFailure> {
        let Named { mut is_clear, rows } = naming.named_by_rule(queue, ids.clone().map(|(_, id)| id));
        for (source, NamedRows { ids, entries }) in rows {
            let are_live = self.outside.jobs().are_live(&sources[source], &ids).await?;
            let live = entries.into_iter().zip(are_live).filter(|(_, is_live)| *is_live);
            live.for_each(|(entry, _)| is_clear[entry] = true);
        }
        let queue: Rc<str> = queue.into();
        let clear = is_clear.iter().filter(|is_clear| **is_clear).count();
        let unclear = ids.zip(is_clear).filter(|(_, is_clear)| !is_clear);
        let entry = |((state, id), _): ((State, &String), bool)| Entry {
            queue: Rc::clone(&queue),
            state,
            id: id.clone(),
        };
        Ok(Unclear { entries: unclear.map(entry).collect(), clear })
    }

    async fn read_portions(
        &self,
        scan: &mut Scan<'_>,
        wanted: Vec<Wanted<'_>>,
        later: &mut Later,
    ) -> Result<(), QueueFailure> {
        for portion in wanted {
            if scan.is_needed() {
                self.read_portion(scan, portion, later).await?;
            }
        }
        Ok(())
    }

    /// The payloads of one portion; at the end of its queue, also of what was left for then.
    async fn read_portion(
        &self,
        scan: &mut Scan<'_>,
        wanted: Wanted<'_>,
        later: &mut Later,
    ) -> Result<(), QueueFailure> {
        let Wanted { portion: Portion { queue, page, is_last, .. }, unclear, flaw } = wanted;
        let (Unclear { mut entries, clear }, is_last) = (unclear, *is_last);
        scan.clear(queue, clear);
        flaw.iter().for_each(|flaw| scan.flaw(queue, flaw));
        if page.is_none() && !is_last {
            let is_active = |entry: &Entry| entry.state == State::Active;
            (later.active, entries) = entries.into_iter().partition(is_active);
        }
        self.read_entries(scan, queue, &entries, &mut later.gone).await?;
        if is_last {
            let Later { active, mut gone } = std::mem::take(later);
            self.read_entries(scan, queue, &active, &mut gone).await?;
            self.look_again_for(scan, queue, &gone).await?;
        }
        Ok(())
    }

    /// State by state, a page at a time.
    async fn read_entries(
        &self,
        scan: &mut Scan<'_>,
        queue: &str,
        entries: &[Entry],
        gone: &mut Vec<Entry>,
    ) -> Result<(), QueueFailure> {
        let of_one_state = entries.chunk_by(|one, next| one.state == next.state);
        for page in of_one_state.flat_map(|entries| entries.chunks(self.settings.page_size as usize)) {
            if scan.is_needed() {
                gone.extend(self.read_page(scan, queue, page).await?);
            }
            if gone.len() >= GONE_MAX {
                self.look_again_for(scan, queue, &std::mem::take(gone)).await?;
            }
        }
        Ok(())
    }

    /// Returns the entries whose payload was gone.
    async fn read_page(
        &self,
        scan: &mut Scan<'_>,
        queue: &str,
        entries: &[Entry],
    ) -> Result<Vec<Entry>, QueueFailure> {
        let ids: Vec<String> = entries.iter().map(|entry| entry.id.clone()).collect();
        let mut gone = vec![];
        self.each_payload(queue, &ids, |at, payload| {
            if scan.read(&entries[at], &payload) {
                gone.push(entries[at].clone());
            }
        })
        .await?;
        Ok(gone)
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
            for entry in self.read_page(scan, queue, entries).await? {
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

/// All ids of a queue. What came with the snapshot comes first, then the copies, `active` last.
fn portions<'s>(queue: &'s str, reading: &'s QueueReading) -> Vec<Portion<'s>> {
    let copies = State::ALL.into_iter().filter_map(|state| Some((state, reading.copies.get(&state)?)));
    let pages = copies.flat_map(|(state, copy)| {
        (0..copy.length).step_by(IDS_PER_PAGE).map(move |from| CopyPage { state, copy, from })
    });
    let pages = std::iter::once(None).chain(pages.map(Some));
    let mut portions: Vec<_> = pages.map(|page| Portion { queue, reading, page, is_last: false }).collect();
    portions.iter_mut().last().into_iter().for_each(|portion| portion.is_last = true);
    portions
}
