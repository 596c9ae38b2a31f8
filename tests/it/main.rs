//! Every integration test, in one binary, a module for each subject.

mod boundaries;
mod support;
