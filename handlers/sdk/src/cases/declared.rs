//! What of a source a case is held against, whoever declares it: a handler's constants, or a manifest that a host was told.

use crate::Source;

/// A source's names, as far as a case has to do with them.
#[derive(Debug, Clone)]
pub struct Declared<'a> {
    /// The source.
    pub source: &'a str,
    /// The id column.
    pub id: &'a str,
    /// The status column.
    pub status: &'a str,
    /// The column that tells when the row was last written.
    pub updated_at: &'a str,
    /// The type column, if the table has one.
    pub job_type: Option<&'a str>,
    /// The progress column, if it is mapped.
    pub progress: Option<&'a str>,
    /// The error column, if it is mapped.
    pub error: Option<&'a str>,
    /// Columns that `decide` is shown beside the mapped ones.
    pub extra_columns: Vec<&'a str>,
    /// The statuses of a waiting and of a begun job.
    pub live: [&'a str; 2],
    /// Its job types.
    pub job_types: Vec<&'a str>,
    /// Its reads.
    pub reads: Vec<DeclaredRead<'a>>,
}

/// A read's names.
#[derive(Debug, Clone)]
pub struct DeclaredRead<'a> {
    /// Its name.
    pub name: &'a str,
    /// What each row has.
    pub columns: Vec<&'a str>,
    /// Most rows.
    pub limit: u32,
}

impl<'a> Declared<'a> {
    pub(super) fn mapped_columns(&self) -> impl Iterator<Item = &'a str> {
        let optional = [self.job_type, self.progress, self.error];
        [self.id, self.status, self.updated_at].into_iter().chain(optional.into_iter().flatten())
    }
}

impl From<&Source> for Declared<'static> {
    fn from(source: &Source) -> Self {
        let table = &source.table;
        let reads = source.reads.iter().map(|read| DeclaredRead {
            name: read.name,
            columns: read.columns.to_vec(),
            limit: read.limit,
        });
        Declared {
            source: source.name,
            id: table.id,
            status: table.status,
            updated_at: table.updated_at,
            job_type: table.job_type,
            progress: table.progress,
            error: table.error,
            extra_columns: table.extra_columns.to_vec(),
            live: [table.queued, table.processing],
            job_types: source.job_types.iter().map(|job_type| job_type.name).collect(),
            reads: reads.collect(),
        }
    }
}
