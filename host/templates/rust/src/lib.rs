//! The domain `{{name}}`.
//!
//! The judgement is [`decide()`], what the domain owns is [`MANIFEST`]; this file only makes a component of the two.

mod decide;
mod manifest;

pub use decide::decide;
pub use manifest::MANIFEST;

salvage_handler_sdk::export!(MANIFEST, decide);
