//! The folder changes under a host that goes on. No test waits: each look is told what time it is.

use std::time::Duration;

use insta::assert_snapshot;
use salvage::ports::{HandlerFault, Handlers};
use salvage::wasm::{LOOKS_PER_READING, Limits, Live, Loader, Look, Own, Registry, STILL, Terms};
use salvage_core::capture::CapturePolicy;
use salvage_core::decision::Decision;
use salvage_core::grants::{Grants, GrantsMode};
use salvage_core::manifest::HandlerManifest;
use serde_json::{Value, json};

use crate::wasm_fixtures::*;

const CHANGED: Look = Look { is_changed: true, is_waiting: false };
const WAITING: Look = Look { is_changed: false, is_waiting: true };
const NOTHING: Look = Look { is_changed: false, is_waiting: false };

/// A host's handlers without the host.
struct Place {
    folder: Folder,
    loader: Loader,
    live: Live,
    now: Duration,
}

impl Place {
    /// Every handler granted all it declares.
    async fn of(files: &[(&str, Vec<u8>)]) -> Self {
        Self::under(files, |terms| Terms { mode: GrantsMode::Declared, ..terms }).await
    }

    async fn under(files: &[(&str, Vec<u8>)], settings: impl FnOnce(Terms) -> Terms) -> Self {
        let folder = Folder::of(files);
        let terms = settings(folder.terms().within(patient()));
        let mut loader = Loader::start(&runtime(), terms).await;
        let live = Live::new(loader.settle());
        loader.confirm();
        Self { folder, loader, live, now: Duration::ZERO }
    }

    fn write(&self, file: &str, bytes: &[u8]) {
        std::fs::write(self.folder.path().join(file), bytes).expect("a file");
    }

    async fn look_after(&mut self, pause: Duration) -> Look {
        self.now += pause;
        let look = self.loader.look(self.now).await;
        if look.is_changed {
            self.offer();
        }
        look
    }

    fn offer(&mut self) {
        let next = self.loader.settle();
        self.loader.confirm();
        self.live.offer(next);
    }

    /// Looks until what changed stood still, and lets the next pass begin.
    async fn takes_over(&mut self) {
        assert_eq!(self.look_after(STILL).await, WAITING);
        assert_eq!(self.look_after(STILL).await, CHANGED);
        self.live.between_passes().await;
    }

    fn lines(&self) -> Vec<String> {
        lines(&self.live.newest())
    }

    fn line(&self) -> String {
        self.lines().swap_remove(0)
    }

    /// What each domain that serves says of itself.
    fn about(&self) -> Vec<String> {
        about(&self.live.now())
    }
}

fn about(registry: &Registry) -> Vec<String> {
    registry.domains().into_iter().map(|domain| domain.manifest.description).collect()
}

fn named(about: &str) -> Value {
    let mut manifest = manifest("jobs", "Job", "A");
    manifest["description"] = json!(about);
    manifest
}

fn build(about: &str) -> Vec<u8> {
    declaring(&named(about))
}

/// H6.
#[tokio::test]
async fn a_new_build_serves_from_the_next_pass_on_and_a_bad_one_changes_nothing() {
    let mut place = Place::of(&[("a.wasm", build("first"))]).await;
    assert_eq!(place.look_after(STILL).await, NOTHING);
    place.write("a.wasm", &build("second"));
    assert_eq!(place.look_after(STILL).await, WAITING, "it may be half of a copy");
    assert_eq!(place.look_after(STILL).await, CHANGED);
    assert_eq!(place.about(), ["first"], "a pass may be under way");
    place.live.between_passes().await;
    assert_eq!(place.about(), ["second"]);

    let first_bad =
        [build("third")[..1000].to_vec(), b"garbage".to_vec(), declaring(&json!({ "describe": "trap" }))];
    for bad in first_bad {
        place.write("a.wasm", &bad);
        place.look_after(STILL).await;
        place.look_after(Duration::from_secs(10)).await;
        place.live.between_passes().await;
        assert_eq!(place.about(), ["second"]);
        assert!(place.line().starts_with("a.wasm refused: "), "{}", place.line());
        assert!(place.live.now().reports()[0].serves_on.is_some());
        assert!(place.ask("1").await.is_ok(), "the old build serves on");
    }
    place.write("a.wasm", &build("third"));
    place.takes_over().await;
    assert_eq!((place.about(), place.line()), (vec!["third".to_owned()], "a.wasm active".to_owned()));
}

impl Place {
    async fn ask(&self, id: &str) -> Result<Decision, HandlerFault> {
        Orphan::new(&self.live.now(), "jobs", id).ask_of(&self.live).await
    }
}

#[tokio::test]
async fn a_touch_is_no_new_build() {
    let mut place = Place::of(&[("a.wasm", build("first"))]).await;
    place.write("a.wasm", &build("first"));
    assert_eq!(place.look_after(STILL).await, WAITING);
    assert_eq!(place.look_after(STILL).await, NOTHING);
}

/// H11.
#[tokio::test]
async fn half_a_copy_is_waited_for_and_no_fault() {
    let mut place = Place::of(&[("a.wasm", build("first"))]).await;
    let whole = build("second");
    for part in whole.chunks(whole.len() / 7 + 1).scan(0, |end, part| {
        *end += part.len();
        Some(*end)
    }) {
        place.write("a.wasm", &whole[..part]);
        assert_eq!(place.look_after(STILL).await, WAITING);
        // Half of it stands still for longer than two looks are apart, too.
        if part < whole.len() {
            assert_eq!(place.look_after(STILL).await, WAITING);
            assert_eq!(place.line(), "a.wasm active");
        }
    }
    assert_eq!(place.look_after(STILL).await, CHANGED);
    place.live.between_passes().await;
    assert_eq!(place.about(), ["second"]);

    place.write("a.wasm", &whole[..1000]);
    assert_eq!(place.look_after(STILL).await, WAITING);
    assert_eq!(place.look_after(Duration::from_secs(9)).await, WAITING);
    assert_eq!(place.look_after(Duration::from_secs(1)).await, CHANGED, "nobody goes on with it");
    assert!(place.line().contains("cut off after 1000 bytes"), "{}", place.line());
}

/// H11. As a mounted `ConfigMap` is swapped: the files are links through a link that is replaced.
#[tokio::test]
async fn a_folder_swapped_by_a_link_is_seen_each_time() {
    let volume = tempfile::tempdir().expect("a folder");
    let place_build = |name: &str, about: &str| {
        let folder = volume.path().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::write(folder.join("a.wasm"), build(about)).expect("a file");
        // Links are swapped by rename, or there would be none for a moment.
        let (link, next) = (volume.path().join("..data"), volume.path().join("..data_tmp"));
        std::os::unix::fs::symlink(name, &next).expect("a link");
        std::fs::rename(&next, &link).expect("renamed");
    };
    place_build("..1", "first");
    std::os::unix::fs::symlink("..data/a.wasm", volume.path().join("a.wasm")).expect("a link");
    let mut place = Place::under(&[], |terms| Terms {
        mode: GrantsMode::Declared,
        folder: volume.path().to_owned(),
        ..terms
    })
    .await;
    assert_eq!(place.about(), ["first"]);
    for (name, about) in [("..2", "second"), ("..3", "third")] {
        place_build(name, about);
        place.takes_over().await;
        assert_eq!(place.about(), [about]);
    }
}

#[tokio::test]
async fn a_file_that_is_gone_serves_until_the_pass_that_uses_it_has_ended() {
    let mut place = Place::of(&[("a.wasm", build("first"))]).await;
    let of_the_pass = place.live.now();
    let path = place.folder.path().join("a.wasm");
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(place.look_after(STILL).await, WAITING, "many tools remove before they write");
    assert_eq!(place.about(), ["first"]);
    assert_eq!(place.look_after(STILL).await, CHANGED);
    let orphan = Orphan::new(&of_the_pass, "jobs", "1");
    assert!(orphan.ask_of(&place.live).await.is_ok(), "the pass under way");
    place.live.between_passes().await;
    assert_eq!(orphan.ask_of(&place.live).await, Err(HandlerFault::NotLoaded("jobs".to_owned())));
    assert!(orphan.ask_of(&*of_the_pass).await.is_ok(), "whoever still holds it");
    place.write("a.wasm", &build("second"));
    place.takes_over().await;
    assert_eq!(place.about(), ["second"]);
}

#[tokio::test]
async fn a_folder_that_cannot_be_read_for_a_while_changes_nothing() {
    let mut place = Place::of(&[("a.wasm", build("first"))]).await;
    let (path, away) = (place.folder.path(), place.folder.path().with_extension("away"));
    std::fs::rename(&path, &away).expect("renamed");
    assert_eq!(place.look_after(STILL).await, CHANGED);
    place.live.between_passes().await;
    assert_eq!((place.about(), place.look_after(STILL).await), (vec!["first".to_owned()], NOTHING));
    assert!(place.live.now().folder_fault().is_some());
    std::fs::rename(&away, &path).expect("renamed");
    assert_eq!(place.look_after(STILL).await, CHANGED);
    assert!(place.live.newest().folder_fault().is_none());
}

fn grants(tables: &[&str]) -> Grants {
    let tables = tables.iter().map(|table| (*table).to_owned()).collect();
    Grants { tables, queues: vec!["jobs-queue".to_owned()], ..Grants::default() }
}

#[tokio::test]
async fn a_new_build_that_wants_more_than_is_granted_leaves_its_place_to_the_old_one() {
    let listed = |tables: &'static [&'static str]| {
        move |terms: Terms| {
            let own = Own { grants: Some(grants(tables)), ..terms.general.clone() };
            Terms { named: [("jobs".to_owned(), own)].into(), ..terms }
        }
    };
    let mut place = Place::under(&[("a.wasm", build("first"))], listed(&["\"Job\""])).await;
    let mut greedy = named("greedy");
    greedy["sources"][0]["table"]["table"] = json!("users");
    place.write("a.wasm", &declaring(&greedy));
    place.takes_over().await;
    assert_eq!(place.about(), ["first"]);
    assert_snapshot!(place.line(), @r#"
    a.wasm refused: the grants of "jobs" do not cover its manifest; add under [handler.jobs.grants]:
    tables = ['users']
    "#);
    // The line is added: the new build takes over without the file being touched.
    let terms = listed(&["\"Job\"", "users"])(place.folder.terms().within(patient()));
    place.loader.change(terms).await;
    place.offer();
    assert_eq!(place.about(), ["first"], "between passes only");
    place.live.between_passes().await;
    assert_eq!((place.about(), place.line()), (vec!["greedy".to_owned()], "a.wasm active".to_owned()));
    // What is taken away is taken away from what serves, too.
    place.loader.change(listed(&["others"])(place.folder.terms().within(patient()))).await;
    place.offer();
    place.live.between_passes().await;
    assert!(place.about().is_empty() && place.line().starts_with("a.wasm refused: "), "{}", place.line());
}

/// H13 under a running host.
#[tokio::test]
async fn whoever_serves_is_not_put_out_by_a_newcomer_of_an_earlier_name() {
    let mut place = Place::of(&[("b.wasm", build("first"))]).await;
    let mut rival = named("rival");
    rival["domain"] = json!("rival");
    place.write("a.wasm", &declaring(&rival));
    place.takes_over().await;
    assert_eq!(place.about(), ["first"]);
    assert_snapshot!(place.line(), @r#"a.wasm refused: job type "A" of table "Job" is owned by jobs/jobs (b.wasm) already, and has one owner; take it out of one of the two manifests"#);
    // A new build of one that serves, too, is refused what another owns.
    place.write("c.wasm", &declaring(&manifest("third", "Elsewhere", "A")));
    place.takes_over().await;
    place.write("c.wasm", &declaring(&manifest("third", "Job", "A")));
    place.takes_over().await;
    assert_eq!(place.about(), ["first", "A domain of a test."]);
    assert!(place.lines()[2].contains("is owned by jobs/jobs (b.wasm) already"), "{:?}", place.lines());
}

#[tokio::test]
async fn a_pin_lets_only_the_build_serve_that_it_names() {
    let digest = |bytes: &[u8]| {
        use sha2::{Digest, Sha256};
        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let (first, second) = (build("first"), build("second"));
    let pinned = digest(&first);
    let settings = |terms: Terms| {
        let own = Own { pin: Some(digest(&first)), ..terms.general.clone() };
        Terms { mode: GrantsMode::Declared, named: [("jobs".to_owned(), own)].into(), ..terms }
    };
    let mut place = Place::under(&[("a.wasm", first.clone())], settings).await;
    place.write("a.wasm", &second);
    place.takes_over().await;
    assert_eq!(place.about(), ["first"]);
    let line = place.line().replace(&pinned, "(first)").replace(&digest(&second), "(second)");
    assert_snapshot!(line, @"a.wasm refused: [handler.jobs] sha256 is (first), and this file's is (second); place the build that is meant, or change the pin");
}

#[tokio::test]
async fn a_handler_that_only_traps_is_quarantined_until_another_build_is_there() {
    let mut place = Place::of(&[("a.wasm", build("first"))]).await;
    for pass in 0..3 {
        place.live.between_passes().await;
        for call in 0..4 {
            let ended = place.ask("trap").await;
            let is_asked = matches!(&ended, Err(HandlerFault::Trap { .. }));
            assert_eq!(is_asked, pass < 2 || call < 2, "{ended:?}");
        }
    }
    assert_snapshot!(place.line(), @"a.wasm quarantined: its last 10 calls, in 3 passes, all failed, the last one with: trap: wasm `unreachable` instruction executed in hostile_handlers::guest::misbehave; its jobs wait until a new build of it is there, the host is started again, or it answers for another job (tried once a pass)");
    let Err(HandlerFault::Quarantined(why)) = place.ask("trap").await else { panic!("it was asked") };
    assert!(place.line().contains(&why));
    // Loading another file does not forget it.
    place.write("b.wasm", &declaring(&manifest("other", "Other", "A")));
    place.takes_over().await;
    assert!(place.line().starts_with("a.wasm quarantined: "), "{}", place.line());
    place.write("a.wasm", &rebuilt(build("first"), b'x'));
    place.takes_over().await;
    assert_eq!(place.line(), "a.wasm active");
    assert!(matches!(place.ask("trap").await, Err(HandlerFault::Trap { .. })), "it is asked again");
}

#[tokio::test]
async fn in_quarantine_an_answer_about_another_job_releases() {
    let place = Place::of(&[("a.wasm", build("first"))]).await;
    for _ in 0..10 {
        place.live.between_passes().await;
        place.ask("trap").await.expect_err("a trap");
    }
    assert!(place.line().starts_with("a.wasm quarantined: "), "{}", place.line());
    place.live.between_passes().await;
    assert!(matches!(place.ask("trap").await, Err(HandlerFault::Quarantined(_))));
    assert_eq!(place.ask("1").await, Ok(Decision::Hold("job 1".to_owned())), "the one try of this pass");
    assert_eq!(place.line(), "a.wasm active");
    assert!(matches!(place.ask("trap").await, Err(HandlerFault::Trap { .. })));
}

#[tokio::test]
async fn a_build_that_the_database_does_not_fit_is_offered_again_from_time_to_time() {
    let mut place = Place::of(&[("a.wasm", build("first"))]).await;
    place.write("a.wasm", &build("second"));
    place.takes_over().await;
    place.write("a.wasm", &build("third"));
    place.look_after(STILL).await;
    assert!(place.loader.look(place.now + STILL).await.is_changed);
    place.loader.settle();
    place.loader.refuse("jobs", vec!["no column \"b\"".to_owned()]);
    place.offer();
    place.live.between_passes().await;
    assert_eq!(place.about(), ["second"]);
    assert_snapshot!(place.line(), @r#"a.wasm refused: its manifest does not fit the database: no column "b""#);
    let mut looks = 1;
    while !place.look_after(STILL).await.is_changed {
        looks += 1;
    }
    assert!(looks <= LOOKS_PER_READING, "{looks} looks");
    place.live.between_passes().await;
    assert_eq!((place.about(), place.line()), (vec!["third".to_owned()], "a.wasm active".to_owned()));
}

/// Goal: no setting of a handler is forgotten while its file stays as it is. Method: each is changed for itself, and what a
/// pass would see of the handler is another.
#[tokio::test]
async fn every_setting_of_a_handler_is_in_force_from_the_next_pass_on() {
    let granted = Own { grants: Some(grants(&["\"Job\""])), limits: patient(), ..Own::default() };
    let listed = |own: Own| move |terms: Terms| Terms { named: [("jobs".to_owned(), own)].into(), ..terms };
    let mut place = Place::under(&[("a.wasm", build("first"))], listed(granted.clone())).await;
    let seen = async |place: &mut Place| {
        place.live.between_passes().await;
        let domains = place.live.now().domains();
        let asked = if domains.is_empty() { None } else { Some(place.ask("grow:5000000").await) };
        (format!("{domains:?}"), asked, place.line())
    };
    // A setting that is added to it is added here.
    let Own { grants: _, pin: _, role: _, limits, capture: _ } = granted.clone();
    let without = seen(&mut place).await;
    for own in [
        Own { grants: None, ..granted.clone() },
        Own { pin: Some("0".repeat(64)), ..granted.clone() },
        Own { role: Some("salvage_jobs".to_owned()), ..granted.clone() },
        Own { limits: Limits { memory: 4 << 20, ..limits }, ..granted.clone() },
        Own { capture: CapturePolicy { is_kept: true, ..CapturePolicy::default() }, ..granted.clone() },
    ] {
        let told = format!("{own:?}");
        for (own, is_as_before) in [(own, false), (granted.clone(), true)] {
            place.loader.change(listed(own)(place.folder.terms().within(patient()))).await;
            place.offer();
            assert_eq!(seen(&mut place).await == without, is_as_before, "{told}");
        }
    }
    // Thresholds are the manifest's.
    let adjust = |mut manifest: HandlerManifest| {
        manifest.sources[0].job_types[0].stale_after_queued = Some(Duration::from_secs(1));
        Ok(manifest)
    };
    let terms = listed(granted)(place.folder.terms().within(patient()));
    place.loader.change(Terms { adjust: Box::new(adjust), ..terms }).await;
    place.offer();
    assert_ne!(seen(&mut place).await, without);
}

/// Widest limits are those under which a file is tried; what they refused is tried again under wider ones.
#[tokio::test]
async fn wider_limits_try_again_what_the_old_ones_refused() {
    let large = with_further_memory(build("large"), 127);
    let small = |terms: Terms| {
        let limits = Limits { memory: 4 << 20, ..patient() };
        Terms { mode: GrantsMode::Declared, ..terms }.within(limits)
    };
    let mut place = Place::under(&[("a.wasm", large)], small).await;
    assert!(place.line().contains("memory: wanted "), "{}", place.line());
    let terms = Terms { mode: GrantsMode::Declared, ..place.folder.terms() }.within(patient());
    place.loader.change(terms).await;
    place.offer();
    assert_eq!(place.line(), "a.wasm active");
}

/// The process's memory after each round of swaps; a leak of a build would show as megabytes.
fn rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this system's process table");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its size");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

#[tokio::test]
async fn many_swaps_leave_the_hosts_memory_as_it_was() {
    let builds = [build("even"), build("odd")];
    let mut place = Place::of(&[("a.wasm", builds[0].clone())]).await;
    let mut after_warming_up = 0;
    for swap in 1..=80 {
        place.write("a.wasm", &builds[swap % 2]);
        place.takes_over().await;
        assert!(place.ask("1").await.is_ok());
        if swap == 20 {
            after_warming_up = rss_kib();
        }
    }
    let grown = rss_kib().saturating_sub(after_warming_up);
    // A build takes about a megabyte: 60 of them, kept, would be 60. `cargo xtask soak-handlers` swaps more often.
    assert!(grown < 20 * 1024, "{grown} KiB more after 60 swaps");
}
