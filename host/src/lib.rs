#![doc = include_str!("../README.md")]

pub mod config;
pub mod ports;
pub mod postgres;
pub mod redis;
pub mod secret;
pub mod telemetry;
pub mod wasm;
