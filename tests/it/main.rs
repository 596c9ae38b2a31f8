//! Every integration test, in one binary, a module for each subject.

mod acting;
mod boundaries;
mod postgres_acts;
mod postgres_fixtures;
mod postgres_ledger;
mod postgres_rows;
mod redis_acl;
mod redis_cluster;
mod redis_connection;
mod redis_lease;
mod redis_requeue;
mod redis_requeue_bullmq;
mod redis_sentinel;
mod redis_snapshot;
mod redis_tls;
mod redis_world;
mod support;
mod wasm_calls;
mod wasm_fixtures;
mod wasm_loading;
mod wasm_shipped;
