//! Tells the operator at once, and with the pass's record.

use std::collections::BTreeSet;

use salvage_core::alarm::{Alarm, AlarmKind};
use salvage_core::source::SourceName;

use super::Pass;
use super::gather::Gathered;
use crate::ports::{Ledger, Outside, StoreFailure, Word};

impl<O: Outside> Pass<'_, O> {
    /// Raises an alarm: in the log as an error, and in `history` and `doctor`. A dry run only logs.
    pub(super) async fn alarm(
        &self,
        source: &SourceName,
        kind: AlarmKind,
        text: String,
    ) -> Result<(), StoreFailure> {
        tracing::error!(%source, "{source}: {text}");
        self.check_lease()?;
        let Some(licence) = &self.licence else { return Ok(()) };
        self.outside.ledger().alarm(&licence.pass_id, &Alarm { source: source.clone(), kind, text }).await
    }

    /// Ends the operator's word that entries of a name are somebody else's, once a row was attributed to one.
    pub(super) async fn end_contradicted(
        &self,
        gathered: &Gathered,
        contradicted: &BTreeSet<(String, String)>,
    ) -> Result<(), StoreFailure> {
        for (queue, name) in contradicted {
            let mut own = gathered.own().iter().filter(|source| source.declared.queue(queue).is_some());
            let Some(source) = own.next() else { continue };
            let text = format!(
                "jobs named {name:?} of queue {queue:?} were accepted as somebody else's, and now one carries the id of a \
                 row: that acceptance is over; correct the manifest"
            );
            self.alarm(&source.name, AlarmKind::ForeignName, text).await?;
            if self.licence.is_some() {
                let word = Word::Foreign { queue: queue.clone(), name: name.clone() };
                self.outside.ledger().revoke(&word).await?;
            }
        }
        Ok(())
    }
}
