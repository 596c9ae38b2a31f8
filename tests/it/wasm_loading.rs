//! What is wrong with a file is said at load, by name, and the other files serve.

use std::collections::BTreeMap;

use insta::assert_snapshot;
use salvage::ports::{HandlerFault, Handlers};
use salvage::wasm::{Limits, LoadFault, LoadState, Registry, Terms, check_placed};
use salvage_core::grants::{Grants, GrantsMode};
use salvage_core::source::Standing;
use serde_json::{Value, json};

use crate::wasm_fixtures::*;

/// The contract with one of its lines changed.
fn changed(from: &str, to: &str) -> Vec<u8> {
    assert!(CONTRACT.contains(from), "the contract has no {from:?}");
    component_of(&CONTRACT.replace(from, to))
}

fn granted(domain: &str, tables: &[&str], queues: &[&str]) -> BTreeMap<String, Grants> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    BTreeMap::from([(
        domain.to_owned(),
        Grants { tables: owned(tables), queues: owned(queues), ..Grants::default() },
    )])
}

#[tokio::test]
async fn a_file_that_is_no_component_says_what_it_is() {
    let hostile = hostile();
    assert_snapshot!(only_line(hostile[..1000].to_vec()).await, @"a.wasm refused: the file is cut off after 1000 bytes: only the beginning of a component; copy it again");
    assert_snapshot!(only_line(Vec::new()).await, @"a.wasm refused: the file is cut off after 0 bytes: only the beginning of a component; copy it again");
    assert_snapshot!(only_line(b"<html>not found</html>".to_vec()).await, @"a.wasm refused: not a WebAssembly component: the file does not begin like one; build the handler for wasm32-wasip2");
    assert_snapshot!(only_line(b"\0asm\x01\0\0\0".to_vec()).await, @"a.wasm refused: a core WebAssembly module, not a component; build the handler for wasm32-wasip2, or make a component of it with `wasm-tools component new`");
    let mut damaged = hostile;
    let middle = damaged.len() / 2;
    damaged[middle..middle + 64].fill(0xff);
    // The rest is the engine's words.
    let line = only_line(damaged).await;
    assert!(line.starts_with("a.wasm refused: not a valid component: "), "{line}");
    assert!(line.ends_with("; build or copy it again") && !line.contains('\n'), "{line}");
}

/// A pipe would be waited for, for ever.
#[tokio::test]
async fn a_pipe_among_the_handlers_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("a.wasm")).status();
    assert!(made.expect("mkfifo").success());
    let loaded = Registry::load(&runtime(), Terms::of(folder.path().to_owned())).await;
    let why = loaded.reports()[0].why().expect("a reason");
    assert!(why.contains("it is no regular file"), "{why}");
}

#[tokio::test]
async fn a_component_of_another_world_is_named() {
    let other = "package a:b@1.0.0; interface greet { hello: func(); } world handler { export greet; }";
    assert_snapshot!(only_line(component_of(other)).await, @"a.wasm refused: it does not export `salvage:handler/domain@0.1.0` but `a:b/greet@1.0.0`; build it against the world `handler` of wit/v0.1");
    let next = CONTRACT.replace("package salvage:handler@0.1.0", "package salvage:handler@0.2.0");
    assert_snapshot!(only_line(component_of(&next)).await, @"a.wasm refused: it is built against contract 0.2.0, and this host speaks 0.1; run a host that speaks 0.2.0, or build it against the world `handler` of wit/v0.1");
}

#[tokio::test]
async fn a_type_that_differs_is_named_with_its_function_and_field() {
    let cases = [
        changed(
            "        status: string,\n        /// RFC",
            "        status: string,\n        extra: string,\n        /// RFC",
        ),
        changed("        recoveries: u32,\n", ""),
        changed("        limit: u32,\n", "        limit: u64,\n"),
        changed("        truncated: bool,\n", "        truncated: option<bool>,\n"),
        changed("        rows: list<string>,\n", "        rows: list<list<string>>,\n"),
        changed("        hold(string),\n", "        hold(string),\n        retry,\n"),
        changed("        /// The entry's hash, in no list.\n        hash-only,\n", ""),
        changed("inputs: list<input>) -> result<decision, string>", "inputs: list<input>) -> decision"),
        changed("decide: func(job: job, inputs: list<input>)", "decide: func(job: job)"),
        changed("enum level { debug, info, warn, error }", "enum level { trace, debug, info, warn, error }"),
        changed("    decide: func(job: job, inputs: list<input>) -> result<decision, string>;\n", ""),
    ];
    let mut lines = Vec::new();
    for case in cases {
        lines.push(only_line(case).await.replace("a.wasm refused: ", ""));
    }
    assert_snapshot!(lines.join("\n"), @"
    function `decide`: record `job` has field `extra` that contract 0.1 does not know; build it against wit/v0.1 as it was released
    function `decide`: record `job` lacks field `recoveries` of contract 0.1; build it against wit/v0.1 as it was released
    function `describe`: field `limit` of record `read` is of type `u64`, in contract 0.1 of `u32`; build it against wit/v0.1 as it was released
    function `decide`: field `truncated` of record `input` is of type `option`, in contract 0.1 of `bool`; build it against wit/v0.1 as it was released
    function `decide`: an element of field `rows` of record `input` is of type `list`, in contract 0.1 of `string`; build it against wit/v0.1 as it was released
    function `decide`: variant `decision` has case `retry` that contract 0.1 does not know; build it against wit/v0.1 as it was released
    function `decide`: enum `residue` lacks case `hash-only` of contract 0.1; build it against wit/v0.1 as it was released
    function `decide`: its result is of type `variant`, in contract 0.1 of `result`; build it against wit/v0.1 as it was released
    function `decide`: it takes job, in contract 0.1 job, inputs; build it against wit/v0.1 as it was released
    function `log`: enum `level` has case `trace` that contract 0.1 does not know; build it against wit/v0.1 as it was released
    function `decide`: it is not exported; build it against wit/v0.1 as it was released
    ");
}

#[tokio::test]
async fn one_more_function_does_no_harm() {
    let more = changed("    describe: func()", "    more: func();\n    describe: func()");
    // It keeps the contract; its `describe` traps, as all that is made here does.
    assert!(only_line(more).await.contains("`describe` failed: trap: "));
}

#[tokio::test]
async fn a_patch_of_the_contract_is_the_contract_if_its_types_are() {
    let patch = CONTRACT.replace("package salvage:handler@0.1.0", "package salvage:handler@0.1.7");
    assert!(only_line(component_of(&patch)).await.contains("`describe` failed: trap: "));
    let other = patch.replace("enum level { debug,", "enum level { trace, debug,");
    assert!(only_line(component_of(&other)).await.contains("enum `level` has case `trace`"));
    let other = patch.replace("        recoveries: u32,\n", "");
    assert!(only_line(component_of(&other)).await.contains("record `job` lacks field `recoveries`"));
}

#[tokio::test]
async fn an_import_that_the_host_does_not_offer_is_named() {
    let http = "    import wasi:http/types@0.2.0;\n    import key-value;\n    import host-log;";
    let wit = CONTRACT.replace("    import host-log;", http)
        + "interface key-value { get: func(key: string) -> string; }\n"
        + "package wasi:http@0.2.0 { interface types { fetch: func(url: string); } }\n";
    assert_snapshot!(only_line(component_of(&wit)).await, @"a.wasm refused: it imports `wasi:http/types@0.2.0`, `salvage:handler/key-value@0.1.0`, which the host does not offer; a handler may import `salvage:handler/host-log` and WASI 0.2 without http");
}

#[tokio::test]
async fn a_describe_that_does_not_answer_refuses_the_file() {
    let behaving = |behaviour: &str| only_line(declaring(&json!({ "describe": behaviour })));
    assert_snapshot!(only_line_within(&Limits::default(), declaring(&json!({ "describe": "loop" }))).await, @"a.wasm refused: `describe` failed: timeout: ran longer than 100 ms");
    assert_snapshot!(behaving("huge").await.replace("8388655", "(8 MiB)"), @"a.wasm refused: `describe` failed: output: answered or wrote (8 MiB) bytes, the limit is 1048576");
    assert_snapshot!(behaving("trap").await, @"a.wasm refused: `describe` failed: trap: wasm `unreachable` instruction executed in hostile_handlers::guest::misbehave");
    let line = behaving("grow-forever").await;
    assert!(line.starts_with("a.wasm refused: `describe` failed: memory: wanted "), "{line}");
}

#[tokio::test]
async fn a_component_that_never_fits_is_refused_with_both_numbers() {
    let folder = Folder::of(&[("a.wasm", with_further_memory(hostile(), 100))]);
    let limits = Limits { memory: 4 * 1024 * 1024, ..patient() };
    let registry = folder.load_within(&limits, GrantsMode::Declared, &BTreeMap::new()).await;
    let line = &lines(&registry)[0];
    // 100 pages of 64 KiB and its own memory.
    assert!(line.starts_with("a.wasm refused: it cannot be instantiated: memory: wanted "), "{line}");
    assert!(line.ends_with(" bytes over all memories, the limit is 4194304"), "{line}");
}

#[tokio::test]
async fn an_unsound_manifest_is_refused_with_each_fault() {
    let mut unsound = manifest("un sound", "T", "A");
    let source = &mut unsound["sources"][0];
    source["queues"][0]["job_id"] = json!("slide");
    source["table"]["failed"] = json!("QUEUED");
    source["job_types"] = json!([]);
    assert_snapshot!(only_line(declaring(&unsound)).await, @r#"a.wasm refused: its manifest of domain "un sound" is not sound: source "jobs": queue "un sound-queue": its job-id rule "slide" must contain {id} exactly once; domain "un sound" must be lower-case letters, digits and `-`; source "jobs": its queued, processing and failed statuses must be three different names; source "jobs": no job type declared"#);
}

#[tokio::test]
async fn a_missing_folder_is_named() {
    let registry = Registry::load(&runtime(), Terms::of("/no/such/folder".into())).await;
    assert_snapshot!(registry.folder_fault().expect("a fault"), @"the handlers' folder /no/such/folder cannot be read (No such file or directory (os error 2)); check [handlers] dir");
    assert!(registry.domains().is_empty() && registry.reports().is_empty());
}

/// H5.
#[tokio::test]
async fn bad_files_leave_the_good_one_serving() {
    let folder = Folder::of(&[
        ("a.wasm", b"garbage".to_vec()),
        ("b.wasm", hostile()),
        ("c.wasm", hostile()[..1000].to_vec()),
        (".d.wasm", hostile()),
        ("notes.txt", Vec::new()),
    ]);
    std::fs::create_dir(folder.path().join("e.wasm")).expect("a folder");
    let registry = folder.trusted().await;
    let reports = registry.reports();
    let states: Vec<_> = reports.iter().map(|report| (&*report.file, report.state.word())).collect();
    let expected =
        [("a.wasm", "refused"), ("b.wasm", "active"), ("c.wasm", "refused"), ("e.wasm", "refused")];
    assert_eq!(states, expected);
    assert!(ask(&registry, "1").await.is_ok());
    let unknown = Orphan::new(&registry, "hostile", "1");
    let unknown = Orphan { source: renamed(&unknown.source, "gone"), ..unknown };
    let answer = unknown.ask(&registry).await;
    assert_eq!(answer.decision, Err(HandlerFault::NotLoaded("gone".to_owned())));
}

fn renamed(
    source: &salvage_core::source::ResolvedSource,
    domain: &str,
) -> salvage_core::source::ResolvedSource {
    let mut source = source.clone();
    source.name.domain = domain.to_owned();
    source
}

#[tokio::test]
async fn a_second_claimant_of_a_job_type_is_refused_and_both_are_named() {
    let claims = |domain, table, job_type| declaring(&manifest(domain, table, job_type));
    let mut whole_table = manifest("whole", "Other", "B");
    whole_table["sources"][0]["table"]["job_type"] = Value::Null;
    let folder = Folder::of(&[
        ("a.wasm", claims("first", "Job", "PDF")),
        ("b.wasm", claims("second", "public.Job", "PDF")),
        ("c.wasm", claims("third", "Job", "PPTX")),
        ("d.wasm", claims("fourth", "Other", "A")),
        ("e.wasm", declaring(&whole_table)),
        ("f.wasm", claims("first", "Elsewhere", "A")),
    ]);
    assert_snapshot!(lines(&folder.trusted().await).join("\n"), @r#"
    a.wasm active
    b.wasm refused: job type "PDF" of table "Job" is owned by first/jobs (a.wasm) already, and has one owner; take it out of one of the two manifests
    c.wasm active
    d.wasm active
    e.wasm refused: every job type of table "Other" is owned by fourth/jobs (d.wasm) already, and has one owner; take it out of one of the two manifests
    f.wasm refused: domain "first" is served by a.wasm already; remove one of the two files
    "#);
}

#[tokio::test]
async fn a_granted_handler_is_not_put_out_by_one_without_grants() {
    let folder = Folder::of(&[
        ("a.wasm", declaring(&manifest("stranger", "Job", "PDF"))),
        ("b.wasm", declaring(&manifest("known", "Job", "PDF"))),
    ]);
    let grants = granted("known", &["\"Job\""], &["known-queue"]);
    let registry = folder.load(GrantsMode::Listed, &grants).await;
    let domains: Vec<_> = registry.domains().into_iter().map(|loaded| loaded.manifest.domain).collect();
    assert_eq!(domains, ["known"]);
    assert!(matches!(&registry.reports()[0].state, LoadState::Refused { fault, .. }
            if matches!(&**fault, LoadFault::Owned { first, .. } if first == "b.wasm")));
}

#[tokio::test]
async fn a_handler_without_a_grants_entry_is_observed() {
    let folder = Folder::of(&[("a.wasm", declaring(&manifest("nosy", "users", "A")))]);
    let registry = folder.load(GrantsMode::Listed, &BTreeMap::new()).await;
    assert_eq!(registry.domains()[0].standing, Standing::Observed);
    assert_snapshot!(lines(&registry)[0], @"
    a.wasm observed: nothing is granted to it, so its jobs are judged and never acted on; to let it act, add:
    [handler.nosy.grants]
    tables = ['users']
    queues = ['nosy-queue']
    ");
}

#[tokio::test]
async fn grants_that_do_not_cover_the_manifest_refuse_it_with_the_missing_lines() {
    let folder = Folder::of(&[("a.wasm", declaring(&manifest("nosy", "users", "A"))), ("b.wasm", hostile())]);
    let grants = granted("nosy", &["\"SlideJob\""], &["nosy-queue"]);
    let registry = folder.load(GrantsMode::Listed, &grants).await;
    assert_snapshot!(lines(&registry)[0], @r#"
    a.wasm refused: the grants of "nosy" do not cover its manifest; add under [handler.nosy.grants]:
    tables = ['users']
    "#);
    assert_eq!(registry.reports()[1].state.word(), "observed", "others are not touched by it");
}

#[tokio::test]
async fn a_checked_file_tells_what_it_declares_and_imports() {
    let folder = Folder::of(&[("a.wasm", hostile()), ("b.wasm", b"garbage".to_vec())]);
    let runtime = runtime();
    let check = |file: &str| {
        let path = folder.path().join(file);
        let runtime = runtime.clone();
        async move {
            let placed = check_placed(&runtime, &path, Terms::of("/no/such/folder".into())).await;
            placed.map(|placed| placed.checked)
        }
    };
    let checked = check("a.wasm").await.expect("a sound handler");
    assert_eq!(checked.manifest.domain, "hostile");
    assert_eq!(checked.digest.len(), 64);
    assert!(checked.imports.iter().any(|import| import.starts_with("salvage:handler/host-log@")));
    let fault = |checked: Result<_, std::sync::Arc<LoadFault>>| checked.expect_err("a fault");
    assert!(matches!(*fault(check("b.wasm").await), LoadFault::NotWasm));
    assert!(matches!(*fault(check("c.wasm").await), LoadFault::Read(_)));
}
