//! Applies `migrations/example/`, the tables of the example application, with psql. See `migrations/README.md`.

use crate::postgres::psql;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A file that begins so is run outside of a transaction.
const NO_TRANSACTION: &str = "-- no-transaction";

/// The example's own history. Its name is what is applied, its digest that of the file as it was then.
const HISTORY: &str = "CREATE TABLE IF NOT EXISTS public.example_migrations (
    name       text        PRIMARY KEY,
    digest     text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP
)";

struct Migration {
    name: String,
    file: PathBuf,
    digest: String,
    in_transaction: bool,
}

/// Applies what is missing, in name order, and returns the names of what it applied.
///
/// Errors: a file that differs from what was applied under its name; psql's message, with the file's name. What came
/// before the failing file stays applied.
pub fn migrate(url: &str, folder: &Path) -> Result<Vec<String>> {
    let migrations = read(folder)?;
    psql(url, &["--command", HISTORY]).context("making the example's migration history")?;
    let applied = read_history(url)?;
    let mut newly = Vec::new();
    for migration in migrations {
        match applied.get(&migration.name) {
            Some(digest) if *digest == migration.digest => {}
            Some(_) => bail!(
                "{} differs from what was applied to this database: start from an empty one, or put the file back and \
                 add a new one",
                migration.file.display()
            ),
            None => {
                apply(url, &migration).with_context(|| format!("applying {}", migration.file.display()))?;
                newly.push(migration.name);
            }
        }
    }
    Ok(newly)
}

fn apply(url: &str, migration: &Migration) -> Result<()> {
    let file = migration.file.to_str().context("a path that is not UTF-8")?;
    // Neither value can hold a quote: the names are ours, the digest is hexadecimal.
    let record = format!(
        "INSERT INTO public.example_migrations (name, digest) VALUES ('{}', '{}')",
        migration.name, migration.digest
    );
    if migration.in_transaction {
        psql(url, &["--single-transaction", "--file", file, "--command", &record])?;
    } else {
        psql(url, &["--file", file])?;
        psql(url, &["--command", &record])?;
    }
    Ok(())
}

fn read_history(url: &str) -> Result<BTreeMap<String, String>> {
    let rows = psql(url, &["--command", "SELECT name, digest FROM public.example_migrations"])
        .context("reading the example's migration history")?;
    Ok(rows
        .lines()
        .filter_map(|row| row.split_once('|'))
        .map(|(name, digest)| (name.into(), digest.into()))
        .collect())
}

/// All migrations of a folder, in name order.
fn read(folder: &Path) -> Result<Vec<Migration>> {
    let mut migrations = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let file = entry.with_context(|| format!("listing {}", folder.display()))?.path();
        if file.extension().is_none_or(|extension| extension != "sql") {
            continue;
        }
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let name = file
            .file_stem()
            .and_then(|stem| stem.to_str())
            .context("a file name that is not UTF-8")?
            .to_owned();
        if name.contains('\'') {
            bail!("{}: a migration's name must not hold a quote", file.display());
        }
        let digest = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        migrations.push(Migration { name, digest, in_transaction: !text.starts_with(NO_TRANSACTION), file });
    }
    migrations.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(migrations)
}
