//! What kind of world a seed makes. Every seed leaves most dangers out, so that the few it has come together more often
//! than if all of them came at once.

use std::time::Duration;

use salvage_core::lease::ScopeKind;
use salvage_core::settings::PassSettings;

use super::random::Random;

/// How dangerous a world is.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    pub(super) hosts: usize,
    /// How long the world is restless, before it calms down.
    pub(super) restless: Duration,
    /// Between two moves of the application while no host works.
    pub(super) moves_every: Duration,
    /// How often, of a thousand steps of a host, the application comes first.
    pub(super) rival: u32,
    /// How often a request fails.
    pub(super) fault: u32,
    /// How often a host dies at a step.
    pub(super) crash: u32,
    /// How often it freezes.
    pub(super) freeze: u32,
    /// How often a move is a disaster of Redis.
    pub(super) disaster: u32,
    /// Whether the queues were known for long when it begins.
    pub(super) is_known: bool,
    /// Whether the application's producers use another id rule for some jobs.
    pub(super) has_legacy: bool,
    /// How many, of a thousand jobs, have payloads that are not as the manifest says.
    pub(super) odd_payloads: u32,
    /// Whether jobs lie in a queue that the manifest does not name.
    pub(super) is_misdeclared: bool,
    /// Whether entries change state and queue more than anything else happens.
    pub(super) has_traffic: bool,
    /// Seconds by which the application's clock is ahead.
    pub(super) clock_ahead_s: i64,
    pub(super) settings: PassSettings,
}

impl Profile {
    pub(super) fn of(random: &mut Random) -> Self {
        let seconds = Duration::from_secs;
        let settings = PassSettings {
            interval: seconds(random.pick(&[120, 180, 300])),
            stale_after: seconds(random.pick(&[120, 240])),
            settle: seconds(random.pick(&[10, 30])),
            page_size: random.pick(&[2, 200, 200]),
            recoveries_max: random.pick(&[1, 2, 3]),
            acts_max: random.pick(&[2, 1_000, 1_000]),
            lease_scope: random.pick(&[ScopeKind::Global, ScopeKind::Global, ScopeKind::Domain]),
            lease_ttl: seconds(random.pick(&[60, 120, 600])),
            ..PassSettings::default()
        };
        let has_traffic = random.permille(250);
        let is_misdeclared = random.permille(60);
        let stale_after = if is_misdeclared { seconds(3_600) } else { settings.stale_after };
        let settings = PassSettings { stale_after, ..settings };
        // A control group tells as long as enough of its rows are young: a host that cannot read the queues until none is
        // has nothing to be warned by, and promises nothing of what no manifest names.
        let at_most = if is_misdeclared { 0 } else { u32::MAX };
        Self {
            hosts: random.pick(&[1, 1, 2]),
            restless: seconds(random.pick(&[400, 700, 1_000])),
            moves_every: seconds(random.pick(&[5, 20, 40])),
            rival: if has_traffic { 850 } else { random.pick(&[0, 100, 300, 600]) },
            fault: at_most.min(random.pick(&[0, 0, 20, 80])),
            crash: at_most.min(random.pick(&[0, 0, 3, 15])),
            freeze: at_most.min(random.pick(&[0, 0, 3, 15])),
            disaster: if is_misdeclared { 0 } else { random.pick(&[0, 0, 0, 10, 40]) },
            is_known: random.permille(800),
            has_legacy: random.coin(),
            odd_payloads: random.pick(&[0, 0, 0, 0, 150]),
            is_misdeclared,
            has_traffic,
            clock_ahead_s: random.pick(&[0, 0, -20, 20]),
            settings,
        }
    }

    /// The same world at rest: nothing goes wrong any more.
    pub(super) const fn calm_down(&mut self) {
        self.rival = 0;
        self.fault = 0;
        self.crash = 0;
        self.freeze = 0;
        self.disaster = 0;
    }
}
