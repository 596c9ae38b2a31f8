//! Backpressure: a queue whose workers are behind already gets nothing more from us.

use std::collections::BTreeMap;

use crate::snapshot::{QueueReading, Snapshot, State};

/// Where a job waits for a worker, now or later. What is active is at work, and a flow's parent waits for its children.
const WAITING: [State; 4] = [State::Waiting, State::Paused, State::Prioritized, State::Delayed];

/// How many jobs wait in each queue, what a pass is about to add included.
#[derive(Debug, Clone)]
pub struct Backlog {
    depths: BTreeMap<String, usize>,
    /// `None`: no limit.
    depth_max: Option<u32>,
}

impl Backlog {
    /// As of a snapshot.
    #[must_use]
    pub fn of(snapshot: &Snapshot, depth_max: Option<u32>) -> Self {
        let depths = snapshot.queues.iter().map(|(queue, reading)| (queue.clone(), depth(reading)));
        Self { depths: depths.collect(), depth_max }
    }

    /// Counts one more job into a queue.
    ///
    /// # Errors
    /// Why not, if as many wait there as the limit allows.
    pub fn admit(&mut self, queue: &str) -> Result<(), String> {
        let depth = self.depths.entry(queue.to_owned()).or_default();
        if let Some(depth_max) = self.depth_max
            && *depth >= depth_max as usize
        {
            return Err(format!(
                "deep: {depth} jobs wait in queue {queue:?}, with those put back just now, and [pass] queue_depth_max is \
                 {depth_max}; it is tried again in the next pass"
            ));
        }
        *depth += 1;
        Ok(())
    }
}

fn depth(reading: &QueueReading) -> usize {
    WAITING.iter().filter_map(|state| reading.lengths.get(state)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{queue, snapshot};

    fn backlog(depth_max: Option<u32>) -> Backlog {
        let busy = queue(&[
            (State::Waiting, "1"),
            (State::Paused, "2"),
            (State::Prioritized, "3"),
            (State::Delayed, "4"),
            (State::Active, "5"),
            (State::WaitingChildren, "6"),
        ]);
        Backlog::of(&snapshot(vec![("busy", busy), ("idle", queue(&[]))]), depth_max)
    }

    #[test]
    fn a_queue_takes_as_many_as_the_limit_leaves_room_for() {
        let mut backlog = backlog(Some(6));
        assert_eq!([(); 3].map(|()| backlog.admit("busy").is_ok()), [true, true, false]);
        let why = backlog.admit("busy").expect_err("it is full");
        assert!(
            why.starts_with("deep: 6 jobs wait in queue \"busy\"") && why.contains("queue_depth_max is 6"),
            "{why}"
        );
        assert!(backlog.admit("idle").is_ok(), "another queue has room");
    }

    #[test]
    fn without_a_limit_there_is_always_room() {
        let mut backlog = backlog(None);
        assert!((0..1_000).all(|_| backlog.admit("busy").is_ok()));
    }
}
