//! Private Redis, PostgreSQL and `PgBouncer` servers for tests and the demo.
//!
//! Each server is started by this process, on a free loopback port, with its data in a temporary folder, and is ended
//! by its process id when its guard is dropped. A server that was running before is never looked for, used or stopped.
//! Calls block and return once the server answers; none waits for a fixed time.
//!
//! This package is small on purpose (no runtime, no drivers), because `cargo xtask` is compiled before anything else.
//! Databases and key prefixes per test are in the support library of `salvage-tests`.

mod certificates;
mod child;
mod cluster;
pub mod example;
mod free_port;
mod pgbouncer;
pub mod postgres;
pub mod redis;
mod reply;
pub mod tools;
mod unprivileged;
mod wait;

pub use certificates::Certificates;
pub use child::Ended;
pub use cluster::Cluster;
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use redis::{Redis, RedisOptions};
pub use wait::until;

/// The password of every PostgreSQL server started here. It must occur in no output of a test run.
pub const MARKER_PASSWORD: &str = "marker-password-6f1d";

/// A text for the payloads of jobs. It must occur in no output of a test run.
pub const MARKER_PAYLOAD: &str = "marker-payload-a83c";
