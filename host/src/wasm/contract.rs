//! The contract as Rust types, generated from `wit/v0.1`. Nothing outside [`super::convert`] and [`super::handler`] looks
//! at them.

wasmtime::component::bindgen!({
    path: "../wit/v0.1",
    world: "handler",
    ownership: Borrowing { duplicate_if_necessary: false },
    exports: { default: async },
    additional_derives: [serde::Serialize],
});

pub(super) use exports::salvage::handler::domain::{Decision, HandlerManifest, Input, Job};
pub(super) use salvage::handler::host_log::Level;
pub(super) use salvage::handler::types;

/// The interface every handler exports.
pub(super) const DOMAIN: &str = "salvage:handler/domain@0.1.0";

/// The interface every handler may import.
pub(super) const HOST_LOG: &str = "salvage:handler/host-log@0.1.0";

/// The words of both, which a component imports as types.
pub(super) const TYPES: &str = "salvage:handler/types@0.1.0";

/// The text the types are generated from.
pub(super) const TEXT: &str = include_str!("../../../wit/v0.1/handler.wit");
