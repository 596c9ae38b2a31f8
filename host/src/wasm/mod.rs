//! Handlers as WebAssembly components: loaded from a folder, each called in a world of its own, within its limits.
//!
//! A handler decides and does nothing else: it sees the question and its own code. What goes wrong in a call is a
//! [`HandlerFault`](crate::ports::HandlerFault) and costs one orphan its decision; what goes wrong at load is a
//! [`LoadFault`] and costs one file.
//!
//! | file | what for |
//! |---|---|
//! | `engine` | what all share: compiler, ticks, imports |
//! | `contract` | `wit/v0.1` as Rust types |
//! | `convert` | those types to core's and back |
//! | `limits`, `store`, `stopwatch` | what one call may use, what it has to itself, and how long it runs |
//! | `handler`, `fault` | one call, and how it ended |
//! | `check`, `load` | from a file to a build that was tried |
//! | `cache` | compiled components, kept from one process to the next |
//! | `state` | where a file is on that way, and what became of it |
//! | `terms`, `settle` | from builds to handlers that serve: the operator's settings, one owner for each job type |
//! | `registry`, `health` | the handlers that serve, and how they fare |
//! | `loader`, `live`, `status` | the same while the folder changes, and what others on the machine are told of it |
//! | `placing` | what would become of a file in the folder |
//! | `rehearsal` | a handler asked by its author, with fuel counted |

mod cache;
mod check;
mod contract;
mod convert;
mod engine;
mod fault;
mod handler;
mod health;
mod limits;
mod live;
mod load;
mod loader;
mod placing;
mod registry;
mod rehearsal;
mod settle;
mod state;
mod status;
mod stopwatch;
mod store;
mod terms;
mod ticks;

pub use check::Misfit;
pub use engine::{EngineFault, Runtime};
pub use limits::Limits;
pub use live::Live;
pub use load::{Checked, FILE_BYTES_MAX, LoadFault};
pub use loader::{FILES_MAX, LOOKS_PER_READING, Loader, Look, STILL};
pub use placing::{Placed, check_placed};
pub use registry::Registry;
pub use rehearsal::{Counted, Rehearsal};
pub use state::{LoadReport, LoadState, Step};
pub use status::{Running, Status, Told, running};
pub use terms::{Adjust, Own, Terms};
