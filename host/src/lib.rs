#![doc = include_str!("../README.md")]

pub mod cli;
pub mod clock;
pub mod command;
pub mod config;
pub mod host;
pub mod pass;
pub mod ports;
pub mod postgres;
pub mod redis;
pub mod reload;
pub mod schedule;
pub mod secret;
pub mod stop;
pub mod telemetry;
pub mod wasm;
