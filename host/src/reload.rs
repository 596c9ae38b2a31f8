//! `salvage run` keeps up with its handlers' folder and its settings, beside the passes.
//!
//! ```text
//!   folder's events ─┐
//!   SIGHUP ──────────┼─▶ look ─▶ load what changed ─▶ settle ─▶ fits the database? ─▶ offer ─▶ the next pass takes it
//!   every 2 s ───────┘                                  ▲             │ no
//!                                                       └── refuse ◀──┘
//! ```
//!
//! Looking is what finds a change; the system's events only make it sooner, since they do not tell everything (a folder
//! behind a link, a mounted volume). Of the settings only those of handlers change under a running host.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::Signal;
use tokio::sync::Notify;

use crate::clock::MachineClock;
use crate::config::{self, Config, ConfigError};
use crate::host::{terms, warn_of_idle_sections};
use crate::ports::{Clock, Handlers, Jobs, LoadedDomain};
use crate::postgres::Postgres;
use crate::stop::Stop;
use crate::wasm::{Live, Loader, Registry, STILL, Status};

/// Between two looks when nothing calls for one sooner.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// After an event: others come with it.
const EVENTS_TOGETHER: Duration = Duration::from_millis(100);

/// Reads the settings again, as at the start.
pub type ReadSettings = Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// What keeping up needs.
pub struct KeepUp {
    /// The handlers that serve.
    pub live: Arc<Live>,
    /// Asked whether a new build fits.
    pub postgres: Postgres,
    /// The folder.
    pub loader: Loader,
    /// The settings as they are.
    pub config: Config,
    /// The file they come from.
    pub file: PathBuf,
    /// Reads them again.
    pub read: ReadSettings,
}

impl KeepUp {
    /// Keeps up until `stop`.
    pub async fn run(mut self, mut hangup: Signal, stop: Stop) {
        let mut settings = SettingsFile::new(&self.file);
        let mut events = Events::of(&self.watched());
        let mut status = None;
        self.keep_telling(&mut status);
        let mut is_waiting = false;
        loop {
            tell(status.as_mut(), &self.live);
            let pause = if is_waiting || settings.is_waiting() { STILL } else { LOOK_EVERY };
            let is_asked = tokio::select! {
                () = stop.requested() => return,
                _ = hangup.recv() => true,
                () = events.come() => { MachineClock.sleep(EVENTS_TOGETHER).await; false }
                () = MachineClock.sleep(pause) => false,
            };
            let is_changed = settings.is_changed() | is_asked;
            if is_changed && self.read_settings(is_asked).await {
                events = Events::of(&self.watched());
                self.offer().await;
            }
            self.keep_telling(&mut status);
            let look = self.loader.look(MachineClock.now()).await;
            if look.is_changed {
                self.offer().await;
            }
            is_waiting = look.is_waiting;
        }
    }

    fn watched(&self) -> Vec<PathBuf> {
        let folder_of_file = self.file.parent().filter(|parent| !parent.as_os_str().is_empty());
        vec![self.config.handlers.dir.clone(), folder_of_file.unwrap_or(Path::new(".")).to_owned()]
    }

    /// Holds the file of this folder, as long as no other host does.
    fn keep_telling(&self, status: &mut Option<Status>) {
        let config::Handlers { dir, cache_dir, .. } = &self.config.handlers;
        let Some(cache_dir) = cache_dir else { return };
        // One that is ours already must not be opened beside itself: its lock would be another's.
        if status.as_ref().is_some_and(|status| status.is_of(cache_dir, dir)) {
            return;
        }
        match Status::open(cache_dir, dir) {
            Ok(opened) => *status = opened,
            Err(error) => tracing::debug!(%error, "`salvage handler list` is told nothing"),
        }
    }

    /// Whether other settings of handlers are in force now.
    async fn read_settings(&mut self, is_asked: bool) -> bool {
        let config = match (self.read)() {
            Ok(config) => config,
            Err(error) => {
                let error = error.to_string().lines().collect::<Vec<_>>().join(" ");
                tracing::error!("the settings that were in force stay, the new ones are wrong: {error}");
                return false;
            }
        };
        let (handlers, later) = taken_over(&self.config, config);
        if !later.is_empty() {
            let later = later.join(", ");
            tracing::warn!("settings that changed and take effect at the next start: {later}");
        }
        if handlers == self.config.handlers {
            if is_asked {
                tracing::info!("the settings of handlers are what they were");
            }
            return false;
        }
        tracing::info!("the settings of handlers changed; they are in force from the next pass on");
        self.config.handlers = handlers;
        self.loader.change(terms(&self.config.handlers)).await;
        true
    }

    /// Settles, and has the next pass take what came of it.
    async fn offer(&mut self) {
        let serving = self.live.newest();
        let mut next = self.loader.settle();
        for (domain, faults) in self.misfits(&serving, &next).await {
            self.loader.refuse(&domain, faults);
            next = self.loader.settle();
        }
        self.loader.confirm();
        warn_of_idle_sections(&self.config.handlers, &next);
        self.live.offer(next);
    }

    /// New builds that do not fit the database where the one that serves does. Of a domain that is new, only the pass can
    /// tell: some of its sources may fit.
    async fn misfits(&self, serving: &Registry, next: &Registry) -> Vec<(String, Vec<String>)> {
        let (serving, mut misfits) = (serving.domains(), Vec::new());
        for new in next.domains() {
            let is_other =
                |old: &&LoadedDomain| old.manifest.domain == new.manifest.domain && old.digest != new.digest;
            let Some(old) = serving.iter().find(is_other) else { continue };
            // Without an answer nothing speaks against it.
            let faults = self.faults(&new).await.unwrap_or_default();
            if !faults.is_empty() && self.faults(old).await.is_some_and(|faults| faults.is_empty()) {
                misfits.push((new.manifest.domain.clone(), faults));
            }
        }
        misfits
    }

    async fn faults(&self, domain: &LoadedDomain) -> Option<Vec<String>> {
        let (_, misfits) = self.postgres.resolve(std::slice::from_ref(domain)).await.ok()?;
        let sentence = |misfit: crate::ports::Misfit| {
            let source = misfit.source;
            misfit.faults.into_iter().map(move |fault| format!("source {source}: {fault}"))
        };
        Some(misfits.into_iter().flat_map(sentence).collect())
    }
}

/// What a running host takes over of new settings, and the names of others that changed. All are taken apart, so that a new
/// one is not forgotten: a setting is in force, or its name is told.
fn taken_over(current: &Config, new: Config) -> (config::Handlers, Vec<&'static str>) {
    let Config { database, redis, pass, lease, handlers, log, notes: _ } = new;
    let config::Handlers { dir, grants, cache_dir, limits, capture_inputs, named } = handlers;
    let is_other = [
        ("[database]", database != current.database),
        ("[redis]", redis != current.redis),
        ("[pass] or [lease]", pass != current.pass || lease != current.lease),
        ("[handlers] cache_dir", cache_dir != current.handlers.cache_dir),
        ("[log]", log != current.log),
    ];
    let later = is_other.into_iter().filter(|(_, is_other)| *is_other).map(|(name, _)| name).collect();
    let cache_dir = current.handlers.cache_dir.clone();
    (config::Handlers { dir, grants, cache_dir, limits, capture_inputs, named }, later)
}

/// Whoever asks about a running host may get no answer; the host does not suffer.
fn tell(status: Option<&mut Status>, live: &Live) {
    if let Some(status) = status
        && let Err(error) = status.tell(live)
    {
        tracing::debug!(%error, "`salvage handler list` is told nothing new");
    }
}

/// The settings' file, known by its text.
struct SettingsFile {
    path: PathBuf,
    text: Option<String>,
    /// A text that is new and may be only half of one.
    seen: Option<Option<String>>,
}

impl SettingsFile {
    fn new(path: &Path) -> Self {
        let path = path.to_owned();
        Self { text: std::fs::read_to_string(&path).ok(), path, seen: None }
    }

    /// Whether another look is due soon.
    const fn is_waiting(&self) -> bool {
        self.seen.is_some()
    }

    /// Whether it has another text, the same at two looks.
    fn is_changed(&mut self) -> bool {
        let text = std::fs::read_to_string(&self.path).ok();
        if text == self.text {
            self.seen = None;
            return false;
        }
        let is_still = self.seen.as_ref() == Some(&text);
        if is_still {
            (self.text, self.seen) = (text, None);
        } else {
            self.seen = Some(text);
        }
        is_still
    }
}

/// The system's events for some folders, as far as it tells any.
struct Events {
    came: Arc<Notify>,
    /// Ends them when it is dropped.
    _watcher: Option<RecommendedWatcher>,
}

impl Events {
    fn of(folders: &[PathBuf]) -> Self {
        let came = Arc::new(Notify::new());
        let nudge = Arc::clone(&came);
        // Reading is no change, and we read.
        let told = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                nudge.notify_one();
            }
        };
        let watcher = notify::recommended_watcher(told).and_then(|mut watcher| {
            for folder in folders {
                watcher.watch(folder, RecursiveMode::NonRecursive)?;
            }
            Ok(watcher)
        });
        if let Err(error) = &watcher {
            tracing::info!(%error, "no events of the handlers' folder; it is looked at every 2 s all the same");
        }
        Self { came, _watcher: watcher.ok() }
    }

    async fn come(&self) {
        self.came.notified().await;
    }
}
