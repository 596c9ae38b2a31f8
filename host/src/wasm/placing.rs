//! What would become of a file if it were placed in the folder, without placing it.

use std::path::Path;
use std::sync::Arc;

use super::engine::Runtime;
use super::load::{self, Checked, LoadFault};
use super::loader::{FILES_MAX, Loader, name_of};
use super::state::LoadReport;
use super::terms::Terms;

/// A sound handler, and how it would fare in the folder.
pub struct Placed {
    /// What it is.
    pub checked: Checked,
    /// As loading would judge it under the operator's terms, beside the files that are there.
    pub report: LoadReport,
    /// Files of the folder that serve its domain under other names: it is judged as if they had made way.
    pub in_its_way: Vec<String>,
}

/// Judges one file by every rule of loading: form, contract, manifest; then pin, grants, settings and owners.
///
/// # Errors
/// If it is no sound handler.
pub async fn check_placed(runtime: &Runtime, path: &Path, terms: Terms) -> Result<Placed, Arc<LoadFault>> {
    let attempt = load::file(runtime, path, &terms.trial()).await;
    let checked = attempt.built()?.checked();
    let mut loader = Loader::start(runtime, terms).await;
    // Those that are there serve already, and are not put out by a newcomer.
    loader.settle();
    loader.confirm();
    let name = name_of(path);
    let in_its_way = loader.make_way(&checked.manifest.domain, &name);
    loader.place(path, attempt);
    if loader.count() > FILES_MAX {
        return Err(Arc::new(LoadFault::TooMany { limit: FILES_MAX }));
    }
    let reports = loader.settle().reports;
    let report = reports.into_iter().find(|report| report.file == name);
    Ok(Placed { checked, report: report.expect("it was placed above"), in_its_way })
}
