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
//! | `limits`, `store` | what one call may use, and what it has to itself |
//! | `handler`, `fault` | one call, and how it ended |
//! | `check`, `load` | from a file to a handler |
//! | `registry` | from a folder to the handlers that serve |
//! | `rehearsal` | a handler asked by its author, with fuel counted |

mod check;
mod contract;
mod convert;
mod engine;
mod fault;
mod handler;
mod limits;
mod load;
mod registry;
mod rehearsal;
mod store;

pub use check::Misfit;
pub use engine::{EngineFault, Runtime};
pub use limits::Limits;
pub use load::{Checked, FILE_BYTES_MAX, LoadFault, check_file};
pub use registry::{FILES_MAX, LoadReport, LoadState, Registry};
pub use rehearsal::{Counted, Rehearsal};
