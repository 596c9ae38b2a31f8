#![doc = include_str!("../README.md")]

pub mod pass;
pub mod ports;
pub mod postgres;
pub mod redis;
pub mod stop;
pub mod wasm;
