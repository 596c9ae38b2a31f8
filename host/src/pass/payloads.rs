//! Payloads of any number of entries, in as many replies as it takes: a reply holds no more than a page of bytes.

use salvage_core::payload::Payload;
use salvage_core::sighting::QueueFailure;

use super::Pass;
use crate::ports::{Outside, Queues};

impl<O: Outside> Pass<'_, O> {
    /// Shows the payload of each entry with its position, in their order. None is kept.
    pub(super) async fn each_payload(
        &self,
        queue: &str,
        entry_ids: &[String],
        mut see: impl FnMut(usize, Payload),
    ) -> Result<(), QueueFailure> {
        let mut at = 0;
        while at < entry_ids.len() {
            let payloads = self.outside.queues().payloads(queue, &entry_ids[at..]).await?;
            if payloads.is_empty() {
                let found = format!("no payload of {} that were asked for", entry_ids.len() - at);
                return Err(QueueFailure::UnexpectedReply { command: "EVALSHA", found });
            }
            for payload in payloads {
                see(at, payload);
                at += 1;
            }
        }
        Ok(())
    }
}
