//! Every decision Salvage makes, as functions from facts to data.
//!
//! Nothing here reads a clock, a store or a random source: time, randomness and settings arrive as arguments, and what
//! shall be done leaves as values ([`act::Act`], [`report::Report`]). So the same code runs in production, in property
//! tests and in a simulation. Adapters turn what they read into these types once, at their edge.
//!
//! Read in this order: [`manifest`] (what a domain declares), [`candidate`] (rows that may need recovery), [`snapshot`]
//! (what the queues said), [`naming`], [`lookup`] and [`scan`] (who is present), [`epoch`] (whether an absence may be believed),
//! [`decision`] (what shall become of an orphan), [`storm`], [`parking`] and [`backlog`] (what has to wait), [`stages`] (how
//! many at once), [`act`] (the one write), [`report`], [`text`] (what may go to a terminal).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod act;
pub mod alarm;
pub mod backlog;
pub mod candidate;
pub mod capture;
pub mod control;
pub mod decision;
pub mod declaration;
pub mod epoch;
#[cfg(test)]
mod fixtures;
pub mod grants;
// Of the handlers' SDK, which holds its cases against the same rules.
#[path = "../../../handlers/sdk/src/host_rules.rs"]
mod host_rules;
#[cfg(test)]
mod interleaving;
mod json;
pub mod lease;
pub mod ledger;
pub mod lookup;
pub mod manifest;
pub mod mention;
pub mod naming;
pub mod outcome;
pub mod parking;
pub mod payload;
pub mod quarantine;
pub mod report;
pub mod scan;
pub mod settings;
pub mod sighting;
pub mod snapshot;
pub mod source;
pub mod stages;
pub mod storm;
pub mod text;
pub mod usage;
