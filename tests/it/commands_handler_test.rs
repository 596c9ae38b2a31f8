//! `salvage handler test`: case files against real components.

use std::fs;

use anyhow::{Context, Result};
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::commands_handler_desk::{Desk, root};

/// Snapshots of what is printed, without the counts of fuel.
macro_rules! assert_said {
    ($text:expr, @$expected:literal) => {
        insta::with_settings!({ filters => vec![(r" +[0-9]{4,}\n", " [fuel]\n"), (r"decision +fuel", "decision fuel"), (r"guest\.rs:[0-9:]+", "guest.rs:[place]")] }, {
            assert_snapshot!($text, @$expected);
        });
    };
}

#[test]
fn every_case_of_the_shipped_handlers_passes() -> Result<()> {
    let desk = Desk::with(&["exports", "slides", "video-composition"])?;
    for name in ["exports", "slides", "video-composition"] {
        let cases = root().join(format!("handlers/{name}/cases")).display().to_string();
        let ran = desk.salvage(&["handler", "test", &format!("{name}.wasm"), &cases])?.ended_with(0)?;
        let count = fs::read_dir(&cases)?.count();
        assert!(
            ran.stdout.ends_with(&format!("\n{count} cases, each decided twice: all as expected\n")),
            "{ran:#?}"
        );
    }
    Ok(())
}

#[test]
fn the_same_domain_in_typescript_decides_the_same() -> Result<()> {
    let desk = Desk::with(&["exports"])?;
    fs::copy(root().join("tests/data/exports-typescript.wasm"), desk.path("typescript.wasm"))?;
    let cases = root().join("handlers/exports/cases").display().to_string();
    desk.salvage(&["handler", "test", "typescript.wasm", &cases])?.ended_with(0)?;
    let diff =
        desk.salvage(&["handler", "diff", "exports.wasm", "typescript.wasm", &cases])?.ended_with(0)?;
    assert_eq!(diff.stdout, "8 decisions: 8 the same, 0 changed\n");
    let manifest = |file: &str| -> Result<Value> {
        let check = desk.salvage(&["handler", "check", file, "--json"])?.ended_with(0)?;
        Ok(check.json()?["manifest"].clone())
    };
    assert_eq!(manifest("exports.wasm")?, manifest("typescript.wasm")?);
    Ok(())
}

#[test]
fn the_component_made_of_typescript_is_of_its_source() -> Result<()> {
    let mut check = std::process::Command::new("sha256sum");
    check.args(["--check", "--quiet", "tests/data/exports-typescript.sha256"]).current_dir(root());
    let output = check.output().context("starting sha256sum")?;
    assert!(output.status.success(), "run `cargo xtask typescript --accept`: {output:?}");
    Ok(())
}

#[test]
fn a_difference_is_shown_line_by_line_and_ends_with_5() -> Result<()> {
    let desk = Desk::with_hostile()?;
    desk.case("right.json", "1", &json!({ "kind": "hold", "reason": "job 1" }))?;
    desk.case("wrong.json", "2", &json!({ "kind": "fail", "reason": "job 2" }))?;
    desk.case("trap.json", "3", &json!({ "kind": "hold", "reason": "job 3" }))?;
    let ran = desk.salvage(&["handler", "test", "hostile.wasm"])?.ended_with(5)?;
    assert_said!(ran.stdout, @r#"
          case        decision fuel
    ok    right.json  hold [fuel]
    FAIL  trap.json   none [fuel]
    FAIL  wrong.json  hold [fuel]

    cases/trap.json: the handler does 3
      - expected, + decided:
          {
        -   "kind": "hold",
        -   "reason": "job 3"
        +   "kind": "none",
        +   "reason": "trap: panicked at tests/hostile/src/guest.rs:[place] cannot judge job 3"
          }

    cases/wrong.json: the handler does 2
      - expected, + decided:
          {
        -   "kind": "fail",
        +   "kind": "hold",
            "reason": "job 2"
          }

    3 cases, each decided twice: 2 not as expected
    "#);
    Ok(())
}

#[test]
fn accepting_changes_the_expectation_and_nothing_else() -> Result<()> {
    let desk = Desk::with_hostile()?;
    let text = |expected: &str| {
        format!(
            "{{\"about\":\"as its author  formats it\",\n   \"expected\": {expected},\n\
             \"job\":{{ \"source\": \"jobs\", \"id\": \"1\", \"type\": \"ANY\",\"status\":\"QUEUED\"}} }}"
        )
    };
    desk.write("cases/a.json", &text("{}"))?;
    desk.case("b.json", "2", &json!({ "kind": "hold", "reason": "job 2" }))?;
    let untouched = desk.read("cases/b.json")?;
    desk.salvage(&["handler", "test", "hostile.wasm"])?.ended_with(5)?;
    assert_eq!(desk.read("cases/a.json")?, text("{}"), "without --accept nothing is written");

    let accepted = desk.salvage(&["handler", "test", "hostile.wasm", "--accept"])?.ended_with(0)?;
    assert!(accepted.stdout.contains("\na.json: now expects what was decided\n"), "{accepted:#?}");
    assert_eq!(
        desk.read("cases/a.json")?,
        text("{\n    \"kind\": \"hold\",\n    \"reason\": \"job 1\"\n  }")
    );
    assert_eq!(desk.read("cases/b.json")?, untouched);
    desk.salvage(&["handler", "test", "hostile.wasm"])?.ended_with(0)?;
    Ok(())
}

#[test]
fn a_decision_that_depends_on_clock_or_randomness_is_named_and_never_accepted() -> Result<()> {
    let desk = Desk::with_hostile()?;
    desk.case("world.json", "world", &json!({ "kind": "hold", "reason": "" }))?;
    let before = desk.read("cases/world.json")?;
    let ran =
        desk.salvage(&["handler", "test", "hostile.wasm", "--accept", "--json"])?.ended_with(5)?.json()?;
    let case = &ran["cases"][0];
    assert_eq!(case["failure"]["kind"], "not-deterministic");
    let detail = case["failure"]["detail"].as_str().context("a detail")?;
    assert!(
        detail.contains("since 1970 Ok(0ns)") && detail.contains("since 1970 Ok(2000000000s)"),
        "{detail}"
    );
    assert_eq!((&ran["accepted"], desk.read("cases/world.json")?), (&json!([]), before));
    Ok(())
}

#[test]
fn what_the_host_would_refuse_is_never_as_expected() -> Result<()> {
    let desk = Desk::with_hostile()?;
    let decided = json!({
        "kind": "requeue", "queue": "of-another-domain", "name": "x",
        "data": { "jobId": "undeclared-queue" }, "options": {},
    });
    desk.case("queue.json", "undeclared-queue", &decided)?;
    let ran = desk.salvage(&["handler", "test", "hostile.wasm"])?.ended_with(5)?;
    assert!(
        ran.stdout
            .contains("the host would refuse this decision: queue \"of-another-domain\" is not declared"),
        "{ran:#?}"
    );
    Ok(())
}

#[test]
fn what_is_no_case_is_told_by_file() -> Result<()> {
    let desk = Desk::with_hostile()?;
    desk.write("cases/a.json", "{")?;
    desk.write("cases/b.json", r#"{"about": "b", "expect": 1}"#)?;
    desk.case("c.json", "1", &json!({ "kind": "hold", "reason": "job 1" }))?;
    desk.write("cases/d.json", &desk.read("cases/c.json")?.replace("\"jobs\"", "\"letters\""))?;
    desk.write("cases/e.json", &desk.read("cases/c.json")?.replace("\"QUEUED\"", "\"DONE\""))?;
    desk.write("cases/notes.txt", "no case")?;
    let ran = desk.salvage(&["handler", "test", "hostile.wasm"])?.ended_with(5)?;
    assert_said!(ran.stdout, @r"
          case    decision fuel
    FAIL  a.json  -              0
    FAIL  b.json  -              0
    ok    c.json  hold [fuel]
    FAIL  d.json  -              0
    FAIL  e.json  -              0

    cases/a.json:
      not a case: EOF while parsing an object at line 1 column 1

    cases/b.json:
      not a case: unknown field `expect`, expected one of `about`, `job`, `inputs`, `expected` at line 1 column 23

    cases/d.json: the handler does 1
      the manifest declares no source `letters`

    cases/e.json: the handler does 1
      a row with status `DONE` is no candidate

    5 cases, each decided twice: 4 not as expected
    ");
    Ok(())
}

#[test]
fn a_job_type_without_a_case_ends_with_5() -> Result<()> {
    let desk = Desk::with(&["exports"])?;
    let cases = root().join("handlers/exports/cases");
    for name in ["pdf", "pptx", "mp4"] {
        desk.write(&format!("cases/{name}.json"), &fs::read_to_string(cases.join(format!("{name}.json")))?)?;
    }
    let ran = desk.salvage(&["handler", "test", "exports.wasm"])?.ended_with(5)?;
    assert!(
        ran.stdout.ends_with(
            "no case for job type GIF of exports/video-export\n\
             3 cases, each decided twice: all as expected, but not every job type has one\n"
        ),
        "{ran:#?}"
    );
    Ok(())
}

#[test]
fn without_a_case_or_a_component_nothing_was_tested() -> Result<()> {
    let desk = Desk::with(&["exports"])?;
    let none = desk.salvage(&["handler", "test", "exports.wasm"])?.ended_with(1)?;
    assert_eq!(
        none.stderr,
        "error: the cases in cases cannot be read: No such file or directory (os error 2)\n"
    );
    desk.write("cases/notes.txt", "none yet")?;
    let empty = desk.salvage(&["handler", "test", "exports.wasm"])?.ended_with(1)?;
    assert_eq!(empty.stderr, "error: cases holds no case (*.json)\n");
    desk.write("broken.wasm", "none")?;
    let broken = desk.salvage(&["handler", "test", "broken.wasm"])?.ended_with(1)?;
    assert!(
        broken.stderr.starts_with("error: broken.wasm cannot serve: not a WebAssembly component"),
        "{broken:#?}"
    );
    Ok(())
}

#[test]
fn the_limits_of_a_pass_hold() -> Result<()> {
    let desk = Desk::with_hostile()?;
    desk.case("big.json", "grow:67108864", &json!({ "kind": "hold", "reason": "" }))?;
    desk.case("long.json", "loop", &json!({ "kind": "hold", "reason": "" }))?;
    desk.write("salvage.toml", "[handler.hostile.limits]\nrun_time = \"50ms\"\n")?;
    let mut command = desk.command(&["handler", "test", "hostile.wasm", "--json"])?;
    let ran = crate::commands::ran(command.env_remove("SALVAGE_HANDLERS__LIMITS__RUN_TIME"))?
        .ended_with(5)?
        .json()?;
    let reason = |index: usize| ran["cases"][index]["decision"]["reason"].as_str().map(str::to_owned);
    assert_eq!(reason(1).as_deref(), Some("timeout: ran longer than 50 ms"));
    let memory = reason(0).context("a reason")?;
    assert!(memory.starts_with("memory: wanted ") && memory.ends_with("the limit is 67108864"), "{memory}");
    Ok(())
}

#[test]
fn fuel_is_the_same_in_every_run() -> Result<()> {
    let desk = Desk::with(&["slides"])?;
    let cases = root().join("handlers/slides/cases").display().to_string();
    let fuel = || -> Result<Vec<u64>> {
        let ran =
            desk.salvage(&["handler", "test", "slides.wasm", &cases, "--json"])?.ended_with(0)?.json()?;
        ran["cases"]
            .as_array()
            .context("cases")?
            .iter()
            .map(|case| case["fuel"].as_u64().context("fuel"))
            .collect()
    };
    let first = fuel()?;
    assert!(first.iter().all(|fuel| *fuel > 10_000), "{first:?}");
    assert_eq!(fuel()?, first);
    Ok(())
}
