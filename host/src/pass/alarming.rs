//! Tells the operator at once, and with the pass's record.

use salvage_core::alarm::{Alarm, AlarmKind};
use salvage_core::source::SourceName;

use super::Pass;
use crate::ports::{Ledger, Outside, StoreFailure};

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
}
