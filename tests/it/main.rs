//! Every integration test, in one binary, a module for each subject.

mod postgres_acts;
mod postgres_fixtures;
mod postgres_ledger;
mod postgres_rows;
mod support;
