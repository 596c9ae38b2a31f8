//! BullMQ's options for a job that is put back.
//!
//! Only what the host accepts can be said here: delay, parent, repetition and the entry's id are the host's business, and
//! there is no value that a worker of BullMQ 4 to 6 would fail on.

use serde::{Serialize, Serializer};

/// Options of one BullMQ job. What is not set stays with BullMQ's defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<Backoff>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remove_on_complete: Option<Retention>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remove_on_fail: Option<Retention>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack_trace_limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_logs: Option<u32>,
}

/// How long a worker waits between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "type", content = "delay", rename_all = "lowercase")]
pub enum Backoff {
    /// Always this many milliseconds.
    Fixed(u32),
    /// This many milliseconds after the first attempt, twice as long after each further one.
    Exponential(u32),
}

/// What BullMQ keeps of a finished job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Every entry stays.
    KeepAll,
    /// The entry goes as soon as the job is finished.
    RemoveAtOnce,
    /// The newest entries stay, up to this many.
    KeepNewest(u32),
    /// Entries stay for this many seconds.
    KeepSeconds(u32),
    /// The newest entries stay, up to this many, and none of them longer than this.
    KeepNewestForSeconds {
        /// Most entries.
        newest: u32,
        /// Their greatest age.
        seconds: u32,
    },
}

/// The least urgent priority that every BullMQ takes.
const PRIORITY_MAX: u32 = 2_097_151;

impl Options {
    /// No option set.
    pub const fn new() -> Self {
        Options {
            attempts: None,
            backoff: None,
            priority: None,
            remove_on_complete: None,
            remove_on_fail: None,
            stack_trace_limit: None,
            keep_logs: None,
        }
    }

    /// How often the job is tried in all.
    #[must_use]
    pub const fn attempts(self, attempts: u32) -> Self {
        Options { attempts: Some(attempts), ..self }
    }

    /// How long a worker waits between attempts.
    #[must_use]
    pub const fn backoff(self, backoff: Backoff) -> Self {
        Options { backoff: Some(backoff), ..self }
    }

    /// 1 is the most urgent, 2,097,151 the least, for which everything beyond it stands; 0 means none, which goes before
    /// all of them.
    #[must_use]
    pub const fn priority(self, priority: u32) -> Self {
        let priority = if priority > PRIORITY_MAX { PRIORITY_MAX } else { priority };
        Options { priority: Some(priority), ..self }
    }

    /// What stays of the job when it has succeeded.
    #[must_use]
    pub const fn remove_on_complete(self, retention: Retention) -> Self {
        Options { remove_on_complete: Some(retention), ..self }
    }

    /// What stays of the job when its last attempt has failed.
    #[must_use]
    pub const fn remove_on_fail(self, retention: Retention) -> Self {
        Options { remove_on_fail: Some(retention), ..self }
    }

    /// How many lines of a stack trace are kept.
    #[must_use]
    pub const fn stack_trace_limit(self, lines: u32) -> Self {
        Options { stack_trace_limit: Some(lines), ..self }
    }

    /// How many of the job's log lines are kept.
    #[must_use]
    pub const fn keep_logs(self, lines: u32) -> Self {
        Options { keep_logs: Some(lines), ..self }
    }
}

impl Serialize for Retention {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        match self {
            Retention::KeepAll => serializer.serialize_bool(false),
            Retention::RemoveAtOnce => serializer.serialize_bool(true),
            Retention::KeepNewest(count) => serializer.serialize_u32(*count),
            Retention::KeepSeconds(age) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("age", age)?;
                map.end()
            }
            Retention::KeepNewestForSeconds { newest, seconds } => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("count", newest)?;
                map.serialize_entry("age", seconds)?;
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_are_spelt_as_bullmq_does() {
        let all = Options::new()
            .attempts(3)
            .backoff(Backoff::Exponential(5_000))
            .priority(2)
            .remove_on_complete(Retention::KeepNewest(100))
            .remove_on_fail(Retention::KeepSeconds(86_400))
            .stack_trace_limit(10)
            .keep_logs(50);
        assert_eq!(
            serde_json::to_value(all).unwrap(),
            json!({
                "attempts": 3,
                "backoff": { "type": "exponential", "delay": 5000 },
                "priority": 2,
                "removeOnComplete": 100,
                "removeOnFail": { "age": 86400 },
                "stackTraceLimit": 10,
                "keepLogs": 50,
            })
        );
    }

    #[cfg(not(target_family = "wasm"))]
    #[test]
    fn there_is_no_value_that_the_host_refuses() {
        let most = u32::MAX;
        for retention in [
            Retention::KeepAll,
            Retention::RemoveAtOnce,
            Retention::KeepNewest(most),
            Retention::KeepSeconds(most),
            Retention::KeepNewestForSeconds { newest: most, seconds: most },
        ] {
            for backoff in [Backoff::Fixed(most), Backoff::Exponential(most), Backoff::Fixed(0)] {
                let options = Options::new().attempts(most).backoff(backoff).priority(most);
                let options = options.remove_on_complete(retention).remove_on_fail(retention);
                let options = options.stack_trace_limit(most).keep_logs(most);
                let options = serde_json::to_value(options).unwrap();
                assert_eq!(crate::host_rules::option_faults(options.as_object().unwrap()), [""; 0]);
            }
        }
    }

    #[test]
    fn what_is_not_set_is_not_sent() {
        assert_eq!(serde_json::to_string(&Options::new()).unwrap(), "{}");
        let options =
            Options::new().remove_on_complete(Retention::RemoveAtOnce).remove_on_fail(Retention::KeepAll);
        assert_eq!(
            serde_json::to_value(options).unwrap(),
            json!({ "removeOnComplete": true, "removeOnFail": false })
        );
    }
}
