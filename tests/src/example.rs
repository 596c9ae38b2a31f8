//! Rows of the example application, spelt as adjectives:
//! `SlideJob::processing("s1").stale().of("d1").insert(db).await?`.
//!
//! Only what a test is about needs to be said. Times are the database's; a row that is not `stale` was touched just now.

mod jobs;
mod parents;

pub use jobs::{
    Job, JobRow, JobTable, Jobs, NarrationJob, SlideExportJob, SlideJob, VideoExportJob, VideoJob, uuid,
};
pub use parents::{Deck, DeckRow, Video, VideoRow};
