//! Every case file of this handler, natively.

use handler_{{snake}}::{MANIFEST, decide};

#[test]
fn every_case_is_decided_as_expected() {
    salvage_handler_sdk::cases::check(env!("CARGO_MANIFEST_DIR"), &MANIFEST, decide);
}
