//! What integration tests lean on: servers and databases of their own, rows of the example application, real BullMQ.
//!
//! Production code never uses this package. The servers themselves are started by `salvage-services`, which
//! `cargo xtask` shares.

pub mod answering;
pub mod bullmq;
pub mod door;
pub mod example;
pub mod foreign;
pub mod rival;
pub mod services;
pub mod sim;
pub mod stores;
pub mod system;
pub mod toll;
