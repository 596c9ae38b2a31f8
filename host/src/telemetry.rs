//! Where log lines go and what they look like: stderr, UTC, text or JSON, never coloured.
//!
//! Results belong to stdout; nothing here writes there. What is logged is chosen by `RUST_LOG`, in the usual notation
//! (`warn,salvage=debug`).
//!
//! A log that cannot be written stops nothing: see `lines`.

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use self::lines::Lines;

use crate::config::LogFormat;

mod lines;

/// Without `RUST_LOG`: what Salvage does, and what goes wrong in the libraries it uses.
const FILTER_DEFAULT: &str = "warn,salvage=info";

/// Sends this process's log to stderr. To be called once, before anything is logged.
///
/// A `RUST_LOG` that cannot be read is not an error: the default serves, and the log says so.
///
/// # Panics
/// If called twice.
pub fn init(format: LogFormat) {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let (filter, fault) = filter(&wanted);
    tracing::subscriber::set_global_default(subscriber(format, filter, Lines::new(format, io::stderr())))
        .expect("the log is set up once");
    if let Some(fault) = fault {
        tracing::warn!(error = %fault, "RUST_LOG is not a filter, e.g. \"warn,salvage=debug\"; the default serves");
    }
}

fn filter(wanted: &str) -> (EnvFilter, Option<tracing_subscriber::filter::ParseError>) {
    if wanted.trim().is_empty() {
        return (EnvFilter::new(FILTER_DEFAULT), None);
    }
    match wanted.parse() {
        Ok(filter) => (filter, None),
        Err(fault) => (EnvFilter::new(FILTER_DEFAULT), Some(fault)),
    }
}

fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    writer: W,
) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(false)
        // It would tell of failed writes where they failed.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => Box::new(lines.finish()),
        LogFormat::Json => Box::new(lines.json().flatten_event(true).with_span_list(false).finish()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, wanted: &str) -> String {
        let lines = Kept::default();
        let writer = lines.clone();
        let subscriber = subscriber(format, filter(wanted).0, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "salvage::pass", { candidate.id = "a1" }, "recovered");
            tracing::info!(target: "sqlx::query", "SELECT 1");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn text_is_one_plain_line_in_utc() {
        let text = logged(LogFormat::Text, "");
        let (time, rest) = text.split_once(' ').unwrap();
        time.parse::<jiff::Timestamp>().unwrap();
        assert!(time.ends_with('Z'), "{time}");
        assert_eq!(rest.trim(), "INFO salvage::pass: recovered candidate.id=\"a1\"");
    }

    #[test]
    fn json_is_one_flat_object_a_line() {
        let text = logged(LogFormat::Json, "");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "recovered");
        assert_eq!(line["candidate.id"], "a1");
    }

    #[test]
    fn a_filter_that_cannot_be_read_leaves_the_default() {
        assert!(filter("salvage=loud").1.is_some());
        assert_eq!(logged(LogFormat::Text, "salvage=loud").lines().count(), 1);
        assert_eq!(logged(LogFormat::Text, "error"), "");
        assert_eq!(logged(LogFormat::Text, "info").lines().count(), 2);
    }
}
