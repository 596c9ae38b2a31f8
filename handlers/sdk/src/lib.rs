//! What every Salvage handler written in Rust shares, so that a handler is a manifest and one function.
//!
//! A handler crate declares what it owns as a constant [`Manifest`], judges one orphan in a pure [`Decide`] function,
//! and joins the two with [`export!`]:
//!
//! ```
//! use salvage_handler_sdk::*;
//!
//! pub const MANIFEST: Manifest = Manifest {
//!     domain: "letters",
//!     description: "Letters that wait to be printed.",
//!     sources: &[Source {
//!         name: "printing",
//!         table: Table {
//!             table: "letter_jobs",
//!             id: "id",
//!             status: "status",
//!             updated_at: "updated_at",
//!             job_type: None,
//!             progress: None,
//!             error: Some("error"),
//!             extra_columns: &["letter_id"],
//!             queued: "QUEUED",
//!             processing: "PROCESSING",
//!             failed: "FAILED",
//!         },
//!         job_types: &[JobType::restart_safe("print")],
//!         queues: &[QueueRule::new("printing", "letter-{id}", "jobId", JobNames::Only(&["print"]))],
//!         reads: &[],
//!     }],
//! };
//!
//! pub fn decide(job: &Job, _inputs: &Inputs) -> Result<Decision, Error> {
//!     let data = json!({ "jobId": job.id, "letterId": job.columns.text("letter_id")? });
//!     Ok(Decision::requeue("printing", "print", data, Options::default()))
//! }
//!
//! export!(MANIFEST, decide);
//! ```
//!
//! Everything but the glue that [`export!`] emits is plain Rust on every target, so a handler is tested natively and
//! without a host: [`cases::check`] runs a folder of case files.

#[cfg(not(target_family = "wasm"))]
pub mod cases;
mod decision;
mod error;
#[cfg(not(target_family = "wasm"))]
mod host_rules;
mod inputs;
mod job;
pub mod log;
mod manifest;
mod options;
mod row;
mod text;
#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod wasm;

pub use decision::{Decide, Decision, Requeue};
pub use error::Error;
pub use inputs::{Input, Inputs, RawInput};
pub use job::{Job, Residue};
pub use manifest::{JobNames, JobType, Manifest, ParentChange, PayloadMatch, QueueRule, Read, Source, Table};
pub use options::{Backoff, Options, Retention};
pub use row::Row;
pub use serde_json::{Value, json};
pub use text::one_line;

/// Makes the crate a handler component: `export!(MANIFEST, decide)`.
///
/// Takes a [`Manifest`] constant and a [`Decide`] function. Emits the component's exports when the target is
/// WebAssembly; elsewhere it only checks both types, because the exports of a component do not link natively.
#[macro_export]
macro_rules! export {
    ($manifest:expr, $decide:expr $(,)?) => {
        const _: (&$crate::Manifest, $crate::Decide) = (&$manifest, $decide);

        #[cfg(target_family = "wasm")]
        const _: () = {
            struct Component;

            impl $crate::wasm::Guest for Component {
                fn describe() -> $crate::wasm::HandlerManifest {
                    $crate::wasm::describe(&$manifest)
                }

                fn decide(
                    job: $crate::wasm::Job,
                    inputs: Vec<$crate::wasm::Input>,
                ) -> Result<$crate::wasm::Decision, String> {
                    $crate::wasm::decide(job, inputs, $decide)
                }
            }

    $crate::wasm::bindings::export!(Component with_types_in $crate::wasm::bindings);
        };
    };
}
