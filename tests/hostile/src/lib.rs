//! A handler that does everything a handler must not. One component for all the tests of the host's limits:
//!
//! - the **id** of the job says what `decide` does (see `misbehave` in `guest.rs`), e.g. `loop` or `answer:2000000`;
//! - the **manifest** is a JSON text that the test writes into the file's bytes, over the one below, so that a file can
//!   declare anything without being built anew. Its key `describe` may name a behaviour instead, and its key `decides`
//!   a decision for every job.

#[cfg(target_family = "wasm")]
mod guest;
#[cfg(target_family = "wasm")]
mod manifest;
