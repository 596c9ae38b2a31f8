#![doc = include_str!("../README.md")]

pub mod ports;
pub mod postgres;
pub mod redis;
pub mod wasm;
