//! The numbers a pass works by. The host reads them from its configuration; here they are plain values.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::lease::ScopeKind;

/// `[pass]` and `[lease]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassSettings {
    /// From the start of one pass to the next.
    pub interval: Duration,
    /// Age at which a live row becomes a candidate, where no type says otherwise.
    pub stale_after: Duration,
    /// Payloads or inputs per read.
    pub page_size: u32,
    /// From the first to the second look.
    pub settle: Duration,
    /// Recoveries of one job within the window after which it is failed instead.
    pub recoveries_max: u32,
    /// That window.
    pub recoveries_window: Duration,
    /// How long a requeued job waits in `delayed`; spread evenly over the range.
    pub start_delay: RangeInclusive<Duration>,
    /// Most acts in one pass.
    pub acts_max: u32,
    /// Nothing is put back into a queue in which as many jobs wait as this; `None`: no limit.
    pub queue_depth_max: Option<u32>,
    /// The lease's time to live.
    pub lease_ttl: Duration,
    /// What one lease covers.
    pub lease_scope: ScopeKind,
}

impl Default for PassSettings {
    fn default() -> Self {
        let minutes = |count: u64| Duration::from_secs(count * 60);
        Self {
            interval: minutes(5),
            stale_after: minutes(60),
            page_size: 200,
            settle: Duration::from_secs(30),
            recoveries_max: 3,
            recoveries_window: minutes(72 * 60),
            start_delay: Duration::from_secs(5)..=Duration::from_secs(15),
            acts_max: 1000,
            // Off: whatever else lives in its queues, an orphan is put back.
            queue_depth_max: None,
            lease_ttl: Duration::from_secs(600),
            lease_scope: ScopeKind::Global,
        }
    }
}

impl PassSettings {
    /// Listed rows per read: a row is a few hundred bytes, where a payload or an input has kilobytes.
    #[must_use]
    pub const fn rows_per_page(&self) -> u32 {
        self.page_size.saturating_mul(25)
    }
}

/// The `fraction` (0 to 1) of the way through the range.
#[must_use]
pub fn spread(range: &RangeInclusive<Duration>, fraction: f64) -> Duration {
    let width = range.end().saturating_sub(*range.start());
    *range.start() + width.mul_f64(fraction.clamp(0.0, 1.0))
}

/// What of a key decides its slot in a Redis cluster, if not the whole key: the text between the first `{` and the next
/// `}`, unless that is empty. All keys under a prefix with a hash tag lie in one slot.
#[must_use]
pub fn hash_tag(key: &str) -> Option<&str> {
    let (_, after) = key.split_once('{')?;
    let (tag, _) = after.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// A duration as a person writes it, in its largest whole unit: `72 h`, `90 s`, `250 ms`.
#[must_use]
pub fn human(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [("h", 3_600_000), ("min", 60_000), ("s", 1_000)];
    let whole = units.into_iter().find(|(_, size)| ms >= *size && ms.is_multiple_of(*size));
    whole.map_or_else(|| format!("{ms} ms"), |(unit, size)| format!("{} {unit}", ms / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_tag_is_what_redis_takes_for_one() {
        let cases = [
            ("bull", None),
            ("{bull}", Some("bull")),
            ("app:{bull}:x", Some("bull")),
            ("{a}{b}", Some("a")),
            ("{{a}}", Some("{a")),
            ("{}{b}", None),
            ("{bull", None),
            ("}bull{", None),
        ];
        for (key, expected) in cases {
            assert_eq!(hash_tag(key), expected, "{key}");
        }
    }
}
