//! No handler serves: a pass would look at nothing, and must not look like one that found nothing.

use salvage_core::report::{LeaseState, PassSummary, Report};
use salvage_core::text::{name, reason};

use super::super::text::beside;
use super::super::{Done, say, say_json};
use crate::cli::Exit;
use crate::ports::Handlers;
use crate::wasm::Registry;

/// Why no pass is made.
pub(super) struct Unserved {
    exit: Exit,
    why: String,
    /// Each file, and why it does not serve.
    files: Vec<(String, String)>,
}

/// `None` if at least one handler serves.
pub(super) fn unserved(handlers: &Registry) -> Option<Unserved> {
    if let Some(fault) = handlers.folder_fault() {
        return Some(Unserved { exit: Exit::Config, why: fault.to_string(), files: vec![] });
    }
    if !handlers.domains().is_empty() {
        return None;
    }
    let reports = handlers.reports();
    let why = match reports.len() {
        0 => "no handler serves: the folder of [handlers] dir holds no .wasm file; put one there".to_owned(),
        _ => "no handler serves: every file in the folder of [handlers] dir was refused".to_owned(),
    };
    let files = reports.into_iter().map(|report| (report.file.clone(), report.why().unwrap_or_default()));
    Some(Unserved { exit: Exit::Failed, why, files: files.collect() })
}

impl Unserved {
    pub(super) fn tell(self, json: bool) -> Done {
        let Self { exit, why, files } = self;
        if json {
            let files = files.iter().map(|(file, why)| format!("; {file}: {why}"));
            say_json(&nothing(why + &files.collect::<String>()))?;
            return Ok(exit);
        }
        say(beside("nothing was judged: ", &reason(&why)))?;
        for (file, why) in &files {
            say(beside(&format!("{}: ", name(file)), &reason(why)))?;
        }
        Ok(exit)
    }
}

/// The report of no pass.
const fn nothing(why: String) -> Report {
    let pass = PassSummary {
        id: None,
        generation: None,
        lease: LeaseState::NotTaken,
        started_at: None,
        duration_ms: 0,
        redis_commands: 0,
        scan_ran: false,
        why: Some(why),
        queues_in_doubt: vec![],
    };
    Report { pass, sources: vec![], jobs: vec![], queues: vec![] }
}
