//! Each setting: its name, its default, what it may be.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use miette::NamedSource;
use salvage_core::act::STATEMENT_TIMEOUT;
use salvage_core::capture::Capture;
use salvage_core::grants::{Grants, GrantsMode};
use salvage_core::lease::{Budget, ScopeKind};
use salvage_core::settings::{PassSettings, human};

use super::section::{
    Complaint, Section, count, duration, duration_from, duration_range, flag, not_yet, quoted, size, text,
    texts, word,
};
use super::tree::{self, Draft, Node, Place, Table};
use super::{
    Config, ConfigError, Database, Fault, Handler, Handlers, Lease, Limits, Log, LogFormat, OfflineConfig,
    Redis, Thresholds, database, redis,
};
use crate::secret::SecretUrl;

/// Rows or payloads in one read: a reply of a few MB at most.
const PAGE_SIZE_MAX: u32 = 10_000;
/// Beyond this a cap caps nothing.
const RECOVERIES_MAX_MAX: u32 = 1_000;
/// A pass of this many acts takes hours.
const ACTS_MAX_MAX: u32 = 1_000_000;
/// More jobs than a Redis of any size holds.
const QUEUE_DEPTH_MAX_MAX: u32 = 1_000_000_000;
/// A shorter lease runs out between two renewals of a busy host.
const LEASE_TTL_MIN: Duration = Duration::from_secs(1);

type Environment = Vec<(OsString, OsString)>;

/// All settings; what is missing is `None`.
struct Settings {
    database: Option<Database>,
    redis: Option<Redis>,
    pass: PassSettings,
    lease_key: String,
    handlers: Handlers,
    log: Log,
    notes: Vec<String>,
}

/// Reads everything, URLs included.
pub(super) fn config(
    file: Option<(&str, &str)>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Config, ConfigError> {
    let mut reading = Reading::new(file);
    let settings = reading.settings(environment.into_iter().collect(), true)?;
    // A URL that is missing or wrong has left a fault, so that here both are there.
    let (Some(database), Some(redis)) = (settings.database, settings.redis) else {
        return Err(reading.faulty());
    };
    Ok(Config {
        database,
        redis,
        pass: settings.pass,
        lease: Lease { key: settings.lease_key },
        handlers: settings.handlers,
        log: settings.log,
        notes: settings.notes,
    })
}

/// Reads everything; URLs may be missing.
pub(super) fn offline(
    file: Option<(&str, &str)>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<OfflineConfig, ConfigError> {
    let mut reading = Reading::new(file);
    let settings = reading.settings(environment.into_iter().collect(), false)?;
    Ok(OfflineConfig {
        database: settings.database,
        pass: settings.pass,
        handlers: settings.handlers,
        log: settings.log,
        notes: settings.notes,
    })
}

/// A file on its way to settings, with the faults found so far.
struct Reading<'a> {
    file: Option<(&'a str, &'a str)>,
    redacted: String,
    drafts: Vec<Draft>,
}

impl<'a> Reading<'a> {
    fn new(file: Option<(&'a str, &'a str)>) -> Self {
        Self { file, redacted: String::new(), drafts: Vec::new() }
    }

    /// A file that is not TOML is told alone: what it says is not known.
    fn settings(&mut self, environment: Environment, needs_stores: bool) -> Result<Settings, ConfigError> {
        let mut table = Table::new();
        if let Some((_, text)) = self.file {
            let (parsed, redacted) = tree::parse(text);
            self.redacted = redacted;
            match parsed {
                Ok(parsed) => table = parsed,
                Err(draft) => {
                    self.drafts.push(draft);
                    return Err(self.faulty());
                }
            }
        }
        let cache_dir = cache_dir(&environment);
        tree::overlay(&mut table, environment, &mut self.drafts);
        let mut settings = settings(Section::root(table, &mut self.drafts), needs_stores);
        settings.handlers.cache_dir = settings.handlers.cache_dir.or(cache_dir);
        if self.drafts.is_empty() { Ok(settings) } else { Err(self.faulty()) }
    }

    /// The faults with their places as a person counts them.
    fn faulty(&mut self) -> ConfigError {
        let redacted = std::mem::take(&mut self.redacted);
        let name = self.file.map_or("", |(name, _)| name);
        let excerpt = Arc::new(NamedSource::new(name, redacted));
        let mut drafts = std::mem::take(&mut self.drafts);
        drafts.sort_by(|a, b| a.place.cmp(&b.place));
        let fault = |draft: Draft| {
            let Draft { place, message, help } = draft;
            match place {
                Place::File(start, end) => Fault {
                    message,
                    place: self.file.map(|(name, text)| position(name, text, start)),
                    help,
                    text: Some(Arc::clone(&excerpt)),
                    span: Some((start..end).into()),
                },
                Place::Variable(name) => Fault { message, place: Some(name), help, text: None, span: None },
                Place::Nowhere => Fault { message, place: None, help, text: None, span: None },
            }
        };
        ConfigError::Faulty { faults: drafts.into_iter().map(fault).collect() }
    }
}

/// Where the user's caches are, by the rule of the XDG base directories; `None` where there is no such place, as in most
/// containers. A relative path counts as none.
fn cache_dir(environment: &Environment) -> Option<PathBuf> {
    let folder = |name: &str| {
        let (_, value) = environment.iter().find(|(variable, _)| variable == name)?;
        Some(PathBuf::from(value)).filter(|path| path.is_absolute())
    };
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(caches.join("salvage"))
}

fn position(name: &str, text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("{name}:{line}:{column}")
}

fn settings(mut root: Section<'_>, needs_stores: bool) -> Settings {
    let mut notes = Vec::new();
    let database = database::database(root.section("database"), needs_stores, &mut notes);
    let redis = redis::redis(root.section("redis"), needs_stores, &mut notes);
    let (pass, settle_at) = pass(root.section("pass"));
    let (lease_key, pass) = lease(root.section("lease"), pass, settle_at);
    let mut handlers = handlers(root.section("handlers"));
    let general = handlers.limits;
    handlers.named = root.section("handler").each(|name, section| handler(name, section, general));
    let mut admin = root.section("admin");
    admin.get("listen", |_| Err::<(), _>(not_yet("a listener").with_help("leave it out")));
    admin.close();
    let log = log(root.section("log"));
    let mut ledger = root.section("ledger");
    handlers.capture_inputs = ledger.or("capture_inputs", false, flag);
    ledger.close();
    root.close();
    Settings { database, redis, pass, lease_key, handlers, log, notes }
}

pub(super) fn missing_url(variable: &str, example: &str) -> Complaint {
    Complaint::new("url: missing").with_help(format!(
        "set url = {example:?} in that section of salvage.toml, or the environment variable {variable}"
    ))
}

/// The text is never quoted, not even a wrong type's: any of it may be the password.
pub(super) fn url(node: &Node, schemes: &[&str], example: &str) -> Result<SecretUrl, Complaint> {
    let complaint = |message: String| {
        let help = format!("write it as {example:?}; in user and password, percent-encode `@ : / ? # %`");
        Complaint::new(message).with_help(help)
    };
    let tree::Data::Text(text) = &node.data else {
        return Err(complaint("expected a URL in a string".to_owned()));
    };
    SecretUrl::parse(text.trim(), schemes).map_err(|fault| complaint(fault.to_string()))
}

/// The settings, and where `settle` is set.
fn pass(mut section: Section<'_>) -> (PassSettings, Place) {
    let default = PassSettings::default();
    let mut settle_at = Place::Nowhere;
    let settings = PassSettings {
        interval: section.or("interval", default.interval, duration),
        stale_after: section.or("stale_after", default.stale_after, duration),
        page_size: section.or("page_size", default.page_size, |node| count(node, PAGE_SIZE_MAX)),
        settle: section.or("settle", default.settle, |node| {
            settle_at = node.value.clone();
            duration(node)
        }),
        recoveries_max: section
            .or("recoveries_max", default.recoveries_max, |node| count(node, RECOVERIES_MAX_MAX)),
        recoveries_window: section.or("recoveries_window", default.recoveries_window, duration),
        start_delay: section.or("start_delay", default.start_delay, start_delay),
        acts_max: section.or("acts_max", default.acts_max, |node| count(node, ACTS_MAX_MAX)),
        queue_depth_max: section.get("queue_depth_max", |node| count(node, QUEUE_DEPTH_MAX_MAX)),
        lease_ttl: default.lease_ttl,
        lease_scope: default.lease_scope,
    };
    section.close();
    (settings, settle_at)
}

/// A requeued job must not be due before the transaction that enqueued it has ended: a worker would find its row still
/// PROCESSING.
fn start_delay(node: &Node) -> Result<std::ops::RangeInclusive<Duration>, Complaint> {
    let range = duration_range(node)?;
    if *range.start() >= STATEMENT_TIMEOUT {
        return Ok(range);
    }
    let least = human(STATEMENT_TIMEOUT);
    let message = format!("must begin at {least} or later: a transaction of ours may take that long");
    Err(Complaint::new(message))
}

/// The key, and the settings of a pass with its lease. If neither `ttl` nor `settle` is set, they fit.
fn lease(mut section: Section<'_>, pass: PassSettings, settle_at: Place) -> (String, PassSettings) {
    let key = section.or("key", "lock:job-recovery".to_owned(), text);
    let mut place = settle_at;
    let lease_ttl = section.or("ttl", pass.lease_ttl, |node| {
        place = node.value.clone();
        duration_from(node, LEASE_TTL_MIN, "a busy host could not renew it in time")
    });
    let kinds = [ScopeKind::Global, ScopeKind::Domain].map(|kind| (kind.word(), kind));
    let lease_scope = section.or("scope", pass.lease_scope, |node| word(node, &kinds, &[]));
    let pass = PassSettings { lease_ttl, lease_scope, ..pass };
    let budget = Budget::of(&pass);
    if !budget.fits() {
        let complaint =
            Complaint::new(format!("ttl: too short for a pass to act without a renewal: {budget}"));
        section.complain(place, complaint.with_help("make ttl longer, or [pass] settle shorter"));
    }
    section.close();
    (key, pass)
}

fn handlers(mut section: Section<'_>) -> Handlers {
    let path = |node: &Node| text(node).map(PathBuf::from);
    let modes = [("listed", GrantsMode::Listed), ("declared", GrantsMode::Declared)];
    let handlers = Handlers {
        dir: section.or("dir", PathBuf::from("handlers"), path),
        grants: section.or("grants", GrantsMode::default(), |node| word(node, &modes, &[])),
        cache_dir: section.get("cache_dir", path),
        limits: limits(section.section("limits"), Limits::default()),
        capture_inputs: false,
        named: BTreeMap::new(),
    };
    section.close();
    handlers
}

fn limits(mut section: Section<'_>, default: Limits) -> Limits {
    let limits = Limits {
        run_time: section.or("run_time", default.run_time, duration),
        memory_bytes: section.or("memory", default.memory_bytes, size),
        output_bytes: section.or("output", default.output_bytes, size),
        log_bytes: section.or("log", default.log_bytes, size),
    };
    section.close();
    limits
}

fn handler(name: &str, mut section: Section<'_>, general: Limits) -> Handler {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || !name.chars().all(is_plain) {
        let complaint = Complaint::new("is not a handler's name: lower-case letters, digits and `-`");
        section.complain(section.place(), complaint);
    }
    let thresholds = thresholds(&mut section);
    let types = section.section("types").each(|_, mut section| {
        let own = self::thresholds(&mut section);
        section.close();
        own
    });
    let limits = limits(section.section("limits"), general);
    let sha256 = section.get("sha256", sha256);
    let database_role = section.get("database_role", text);
    let is_granted = section.has("grants");
    let grants = grants(section.section("grants"));
    let capture = Capture {
        inputs: section.get("capture_inputs", flag),
        redact: section
            .or("redact", Vec::new(), |node| shaped(node, |entry| entry.contains('.'), "'\"Table\".column'")),
    };
    section.close();
    Handler {
        thresholds,
        types,
        limits,
        grants: is_granted.then_some(grants),
        sha256,
        database_role,
        capture,
    }
}

/// As `sha256sum` prints it.
fn sha256(node: &Node) -> Result<String, Complaint> {
    let digest = text(node)?.trim().to_ascii_lowercase();
    if digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(digest);
    }
    let complaint = Complaint::new(format!("expected 64 hexadecimal digits, found {}", quoted(&digest)));
    Err(complaint.with_help("`sha256sum FILE` and `salvage handler check FILE` print them"))
}

fn thresholds(section: &mut Section<'_>) -> Thresholds {
    let both = section.get("stale_after", duration);
    Thresholds {
        queued: section.get("stale_after_queued", duration).or(both),
        processing: section.get("stale_after_processing", duration).or(both),
    }
}

fn grants(mut section: Section<'_>) -> Grants {
    let grants = Grants {
        tables: section.or("tables", Vec::new(), texts),
        queues: section.or("queues", Vec::new(), texts),
        read: section.or("read", Vec::new(), |node| {
            let has_columns = |entry: &str| entry.ends_with(')') && entry.contains('(');
            shaped(node, has_columns, "'\"Table\"(column, column)'")
        }),
        parents: section.or("parents", Vec::new(), |node| {
            shaped(node, |entry| entry.contains('.'), "'\"Table\".column'")
        }),
    };
    section.close();
    grants
}

/// An entry of another form would never cover anything.
fn shaped(node: &Node, has_shape: impl Fn(&str) -> bool, example: &str) -> Result<Vec<String>, Complaint> {
    let entries = texts(node)?;
    match entries.iter().find(|entry| !has_shape(entry.trim())) {
        Some(entry) => {
            let complaint = Complaint::new(format!("{} names no column", quoted(entry)));
            Err(complaint.with_help(format!("write it as {example}")))
        }
        None => Ok(entries),
    }
}

fn log(mut section: Section<'_>) -> Log {
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let format = section.or("format", LogFormat::default(), |node| word(node, &formats, &[]));
    section.close();
    Log { format }
}
