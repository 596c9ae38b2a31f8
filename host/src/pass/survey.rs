//! A look at whole queues for a person: whose the entries are, and whether young rows are found. Takes no lease and writes
//! nothing; a pass itself reads no more than it needs.

use std::collections::{BTreeMap, BTreeSet};

use salvage_core::control::Control;
use salvage_core::lease::Scope;
use salvage_core::lookup::Lookup;
use salvage_core::scan::{Attribution, Scan};
use salvage_core::settings::PassSettings;
use salvage_core::sighting::QueueFailure;
use salvage_core::source::SourceName;

use super::Pass;
use super::controls;
use super::known::Known;
use super::look::queue_names;
use super::scanning::Broken;
use crate::ports::{Outside, StoreFailure};
use crate::stop::Stop;

/// Payloads read at most: what the first ten thousand entries show, the rest shows too.
const PAYLOADS_MAX: usize = 10_000;

/// Ids at most of all queues together. More would hold up Redis for longer than a look out of curiosity may.
const IDS_MAX: usize = 200_000;

/// What was seen.
#[derive(Debug)]
pub struct Survey {
    /// Per queue, whose its entries are. No entry for a queue that was not looked through.
    pub queues: BTreeMap<String, Attribution>,
    /// Per source, its control groups.
    pub sources: Vec<(SourceName, Vec<Control>)>,
    /// Whether every entry was looked at.
    pub is_whole: bool,
}

/// Looks through the queues that one lease covers.
///
/// # Errors
/// If PostgreSQL failed. A Redis that fails is the inner error.
pub async fn survey<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    scope: &Scope,
    stop: &Stop,
) -> Result<Result<Survey, QueueFailure>, StoreFailure> {
    let pass = Pass { outside, settings, stop, scope, licence: None };
    match pass.survey().await {
        Ok(survey) => Ok(Ok(survey)),
        Err(Broken::Queues(failure)) => Ok(Err(failure)),
        Err(Broken::Store(failure)) => Err(failure),
    }
}

impl<O: Outside> Pass<'_, O> {
    async fn survey(&self) -> Result<Survey, Broken> {
        let (gathered, _) = self.gather().await?;
        let memories = self.memories(gathered.own()).await?;
        let all: BTreeSet<usize> = (0..gathered.own().len()).collect();
        let controls::ControlRows { rows, unread } =
            self.control_rows(&gathered, &all, &memories.queues).await?;
        let queues = queue_names(gathered.own());
        let snapshot = self.whole_snapshot(&queues).await?;
        let mut is_whole = snapshot.ids_total() <= IDS_MAX;
        let mut seen = BTreeMap::new();
        let mut groups = vec![vec![]; gathered.own().len()];
        if is_whole && snapshot.server_fault().is_none() {
            let accepted = Known::accepted_by(&memories);
            let mut lookup = Lookup::new(&gathered.sources, &rows, rows.len()).of_everything();
            self.read_ids(&mut lookup, &snapshot).await?;
            let mut scan = Scan::new(lookup, &accepted).with_payloads_max(PAYLOADS_MAX);
            self.read_payloads(&mut scan, &snapshot, &gathered.sources).await?;
            is_whole = scan.is_needed();
            let mut verdict = scan.finish(&snapshot);
            self.add_residues(&gathered.sources, &rows, &mut verdict.sightings).await;
            let of_rows = rows.iter().zip(&verdict.sightings).enumerate();
            let of_rows =
                of_rows.map(|(at, (row, sighting))| (row, sighting, verdict.by_payload.contains(&at)));
            // Where the scan ended early, who was not found may be in what was not read.
            if is_whole {
                groups = controls::groups(gathered.own().len(), of_rows, unread);
            }
            seen = verdict.attribution;
        }
        let sources = gathered.own().iter().map(|source| source.name.clone()).zip(groups).collect();
        Ok(Survey { queues: seen, sources, is_whole })
    }
}
