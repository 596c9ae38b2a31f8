//! Dry runs beside everything else: they change nothing, and nothing changes for them.

use std::cell::RefCell;

use anyhow::Result;
use salvage::pass::Mode;
use salvage_core::report::LeaseState;
use salvage_tests::example::{Deck, Jobs, SlideExportJob};
use salvage_tests::rival::{Moment, Rival, Rivalled};
use salvage_tests::stores::Stores;
use salvage_tests::system::story;

use crate::acting::with_lost_generation;

/// A25.
#[tokio::test]
async fn a_plan_at_any_moment_of_a_pass_changes_neither_store_and_the_pass_goes_on() -> Result<()> {
    let system = with_lost_generation().await?;
    let another = system.another_host().await?;
    let planned: RefCell<Vec<(Moment, String)>> = RefCell::default();
    let rival: Rival<'_> = Box::new(|moment| {
        let (system, another, planned) = (&system, &another, &planned);
        Box::pin(async move {
            let before = Stores::of(system).await.expect("both stores answer");
            let plan = system.run(another, Mode::DryRun).await.expect("a plan");
            assert_eq!(Stores::of(system).await.expect("both stores answer"), before, "{moment:?}");
            assert_eq!((plan.pass.lease, plan.pass.generation), (LeaseState::NotTaken, None));
            planned.borrow_mut().push((moment, story(&plan, "s1")));
        })
    });
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    let expected = [
        (Moment::BeforeFirstLook, "absent requeue -"),
        (Moment::AfterLook(1), "absent requeue -"),
        (Moment::Settling, "absent requeue -"),
        (Moment::AfterLook(2), "absent requeue -"),
        (Moment::BeforeHold, "absent requeue -"),
        (Moment::BeforeQueue, "absent requeue -"),
        // The entry is there already, the row's change is not yet to be seen.
        (Moment::BeforeCommit, "scheduled"),
    ];
    assert_eq!(*planned.borrow(), expected.map(|(moment, told)| (moment, told.to_owned())));
    Ok(())
}

#[tokio::test]
async fn a_plan_says_what_the_pass_then_does() -> Result<()> {
    let system = with_lost_generation().await?;
    Deck::ready("d1").exporting().insert(system.db.pool()).await?;
    SlideExportJob::processing("e1").stale().of("d1").insert(system.db.pool()).await?;
    let before = Stores::of(&system).await?;
    let plan = system.plan().await?;
    assert_eq!(Stores::of(&system).await?, before);
    let report = system.pass().await?;
    for id in ["s1", "e1"] {
        assert_eq!(story(&report, id), story(&plan, id).replace(" -", " applied"));
    }
    Ok(())
}
