//! A simulator: the production pass on models of both stores, in virtual time, with everything going wrong that can.
//!
//! A seed makes a world (a few jobs of an application, its workers and admins, one or two hosts) and then a history:
//! which of those who are ready goes next, how long each message takes, which of them is lost, who dies or freezes and when,
//! what becomes of Redis. The hosts run `salvage::schedule` and `salvage::pass` as they are in production, over the same
//! ports; only what is behind the ports is a model. Every effect of a host is checked against the truth, which only the
//! simulation knows (`oracle`); then the world comes to rest, and everything must be right within two passes (`rest`).
//!
//! ```text
//!  seed ─▶ profile, world ─▶ events: a message arrives · a host goes on · the application moves · a disaster
//!                              ▲                 │
//!                              └── hosts, polled ┴──▶ effect on a model ──▶ oracle ──▶ violation
//! ```
//!
//! **To replay a seed**: `SALVAGE_SIM_SEED=1234 cargo xtask test --no-lints simulator` runs that seed alone and prints its
//! story, also if it keeps all promises. `SALVAGE_SIM_SEEDS=100000` runs so many instead of the usual number.
//!
//! What makes the models believable is that they pass the same contracts as the real adapters (`it/contract_*.rs`); what
//! makes the oracle believable is that it catches every [`Twin`], a pass that lacks one safeguard.
//!
//! | file | subject |
//! |---|---|
//! | `scheduler`, `clock`, `random` | what happens next, and when |
//! | `profile`, `world`, `domains` | what a seed makes |
//! | `postgres`, `records`, `redis`, `script` | the models |
//! | `host`, `host_queues`, `host_jobs`, `host_ledger` | the production ports on them, and what is lost on the way |
//! | `application`, `workers`, `disasters` | who else acts |
//! | `simulation`, `rest` | the run, and what holds in the end |
//! | `model` | the models without a history, for the contracts |
//! | `oracle`, `twins` | the promises, and passes that break them |

mod application;
mod clock;
mod disasters;
mod domains;
mod host;
mod host_jobs;
mod host_ledger;
mod host_queues;
mod model;
mod oracle;
mod postgres;
mod profile;
mod random;
mod records;
mod redis;
mod rest;
mod scheduler;
mod script;
mod simulation;
mod tally;
mod twins;
mod workers;
mod world;

pub use model::{Model, SimHost, on_model};
pub use oracle::Violation;
pub use tally::Tally;
pub use twins::Twin;

use simulation::Simulation;
use world::World;

/// How a seed's history ended.
#[derive(Debug, Clone)]
pub struct Ending {
    /// The first promise that was broken, if any.
    pub violation: Option<Violation>,
    /// What happened, in numbers.
    pub tally: Tally,
    /// What happened, line by line; empty unless it was asked for.
    pub story: Vec<String>,
}

/// Runs a seed's history with the pass as it is, or with a twin.
#[must_use]
pub fn run(seed: u64, twin: Option<Twin>, is_told: bool) -> Ending {
    let mut world = World::new(seed, twin);
    world.story = is_told.then(Vec::new);
    world.tell_profile();
    let mut simulation = Simulation::new(world);
    simulation.run_restless();
    if simulation.world.borrow().violation.is_none() {
        simulation.come_to_rest();
    }
    let mut world = simulation.world.borrow_mut();
    Ending {
        violation: world.violation.take(),
        tally: world.tally,
        story: world.story.take().unwrap_or_default(),
    }
}
