//! A pass that lacks one safeguard breaks the promise that rests on it, within a thousand histories: so the simulator
//! would see it.

use salvage_tests::sim::{self, Twin};

use crate::simulator_runs::first_seed;

/// Histories within which each twin must be caught.
const SEEDS: u64 = 1_000;

/// Demands that the twin breaks one of these promises.
fn check(twin: Twin, promises: &[u8]) {
    let breaks = |seed| {
        let violation = sim::run(seed, Some(twin), false).violation;
        violation.filter(|violation| promises.contains(&violation.promise))
    };
    let caught = first_seed(SEEDS, breaks);
    assert!(caught.is_some(), "{twin:?} broke none of {promises:?} in {SEEDS} histories");
}

#[test]
fn a_write_guarded_by_id_only_is_caught() {
    check(Twin::GuardedByIdOnly, &[1]);
}

#[test]
fn no_fence_in_postgres_is_caught() {
    check(Twin::NoFenceInPostgres, &[5]);
}

#[test]
fn no_fence_in_the_script_is_caught() {
    check(Twin::NoFenceInScript, &[5]);
}

#[test]
fn enqueuing_before_the_update_is_caught() {
    check(Twin::EnqueueBeforeUpdate, &[1]);
}

#[test]
fn one_snapshot_per_queue_is_caught() {
    check(Twin::OneSnapshotPerQueue, &[3]);
}

#[test]
fn separate_reads_are_caught() {
    check(Twin::SeparateReads, &[3]);
}

#[test]
fn no_second_look_is_caught() {
    check(Twin::NoSecondLook, &[3]);
}

#[test]
fn no_epoch_is_caught() {
    check(Twin::NoEpoch, &[9]);
}

#[test]
fn an_error_read_as_absence_is_caught() {
    check(Twin::ErrorAsAbsence, &[2, 3]);
}

#[test]
fn a_plain_add_is_caught() {
    check(Twin::PlainAdd, &[11]);
}

#[test]
fn taking_the_unattributed_for_foreign_is_caught() {
    check(Twin::UnattributedAsForeign, &[3]);
}

#[test]
fn letting_accept_vouch_for_names_is_caught() {
    check(Twin::AcceptVouchesForNames, &[3]);
}

#[test]
fn acting_without_a_control_group_is_caught() {
    check(Twin::NoControl, &[3]);
}

#[test]
fn a_parent_written_outside_the_transaction_is_caught() {
    check(Twin::ParentOutside, &[6]);
}
