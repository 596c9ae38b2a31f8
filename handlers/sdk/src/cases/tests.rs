//! The runner itself: what it lets pass, and how it words what it does not.

use super::*;
use crate::{Error, Job, JobNames, JobType, Options, QueueRule, Read, Table};

const MANIFEST: Manifest = Manifest {
    domain: "letters",
    description: "Letters that wait to be printed.",
    sources: &[Source {
        name: "printing",
        table: Table {
            table: "letter_jobs",
            id: "id",
            status: "state",
            updated_at: "updated_at",
            job_type: Some("kind"),
            progress: None,
            error: None,
            extra_columns: &["letter_id"],
            queued: "WAITING",
            processing: "PRINTING",
            failed: "LOST",
        },
        job_types: &[JobType::restart_safe("print")],
        queues: &[QueueRule::new("printing", "letter-{id}", "jobId", JobNames::Only(&["print"]))],
        reads: &[Read {
            name: "letter",
            table: "letters",
            columns: &["body"],
            match_column: "id",
            job_column: "letter_id",
            order_by: &[],
            limit: 1,
        }],
    }],
};

/// Puts back a letter that has a body.
fn decide(job: &Job, inputs: &Inputs) -> Result<Decision, Error> {
    let Some(letter) = inputs.first("letter")? else {
        return Ok(Decision::fail(job.reason("The letter was deleted.")));
    };
    let data = json!({ "jobId": job.id, "body": letter.text("body")? });
    Ok(Decision::requeue("printing", "print", data, Options::new()))
}

fn case() -> Value {
    json!({
        "about": "a letter is printed again",
        "job": { "source": "printing", "id": "7", "type": "print", "status": "PRINTING", "columns": { "letter_id": "l" } },
        "inputs": { "letter": { "rows": [{ "body": "Dear" }] } },
        "expected": {
            "kind": "requeue", "queue": "printing", "name": "print", "data": { "jobId": "7", "body": "Dear" }, "options": {}
        }
    })
}

/// The failures of the one case that `change` makes of [`case`], by `decide`.
fn failures(decide: Decide, change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut case = case();
    change(&mut case);
    run_files(&[("a.json", &case.to_string())], decide)
}

fn run_files(files: &[(&str, &str)], decide: Decide) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    run(dir.path(), &MANIFEST, decide)
}

#[test]
fn a_right_case_passes() {
    assert_eq!(failures(decide, |_| ()), [""; 0]);
}

#[test]
fn a_wrong_expectation_shows_the_file_and_what_differs() {
    let failures = failures(decide, |case| case["expected"]["data"]["body"] = "Hello".into());
    let expected = r#"cases/a.json: a letter is printed again
  - expected, + decided:
      {
        "data": {
    -     "body": "Hello",
    +     "body": "Dear",
          "jobId": "7"
        },
        "kind": "requeue",
        "name": "print",
        "options": {},
        "queue": "printing"
      }"#;
    assert_eq!(failures, [expected]);
}

#[test]
fn an_error_of_decide_is_the_decision_none() {
    let failures = failures(decide, |case| {
        case["inputs"]["letter"]["rows"][0]["body"] = Value::Null;
        case["expected"] = json!({
            "kind": "none",
            "reason": "input `letter`: column `body`: expected text, found NULL"
        });
    });
    assert_eq!(failures, [""; 0]);
}

#[test]
fn a_folder_without_cases_fails() {
    let failures = run_files(&[("notes.txt", "none yet")], decide);
    assert_eq!(failures.len(), 1);
    assert!(failures[0].ends_with(": no case files (*.json)"), "{failures:?}");

    let missing = run(Path::new("no such folder"), &MANIFEST, decide);
    assert_eq!(missing.len(), 1);
    assert!(missing[0].starts_with("no such folder: "), "{missing:?}");
}

#[test]
fn a_file_that_is_no_case_is_named() {
    let failures = run_files(&[("a.json", "{"), ("b.json", r#"{"about": "b", "expect": 1}"#)], decide);
    assert!(failures[0].starts_with("cases/a.json: not a case: "), "{failures:?}");
    assert!(failures[1].starts_with("cases/b.json: not a case: unknown field `expect`"), "{failures:?}");
}

#[test]
fn a_job_type_without_a_case_fails() {
    let none_seen = BTreeSet::new();
    assert_eq!(
        types_without_case(&MANIFEST, &none_seen),
        ["cases: none for job type `print` of source `printing`"]
    );
}

#[test]
fn a_case_that_the_host_could_not_send_fails() {
    let check = |change: fn(&mut Value), fault: &str| {
        assert_eq!(failures(decide, change), [format!("cases/a.json: a letter is printed again\n  {fault}")]);
    };
    check(|case| case["job"]["source"] = "sending".into(), "the manifest declares no source `sending`");
    check(|case| case["job"]["type"] = "fax".into(), "source `printing` declares no job type `fax`");
    check(|case| case["job"]["status"] = "LOST".into(), "a row with status `LOST` is no candidate");
    check(|case| case["job"]["columns"]["age"] = 1.into(), "column `age` of the job is not declared");
    check(|case| case["job"]["columns"] = json!({}), "column `letter_id` of the job is missing");
    check(|case| case["inputs"] = json!({}), "input `letter` is missing");
    check(|case| case["inputs"]["stamp"] = json!({ "rows": [] }), "input `stamp` is not declared");
    check(
        |case| case["inputs"]["letter"]["rows"] = json!([{ "text": "" }]),
        "input `letter`, row 1: its columns must be body",
    );
    check(
        |case| case["inputs"]["letter"]["rows"] = json!([{ "body": "" }, { "body": "" }]),
        "input `letter`: more rows than its limit, 1",
    );
}

#[test]
fn a_decision_that_the_host_would_refuse_fails() {
    let check = |decide: Decide, change: fn(&mut Value), fault: &str| {
        assert_eq!(failures(decide, change), [format!("cases/a.json: a letter is printed again\n  {fault}")]);
    };
    check(
        decide,
        |case| case["inputs"]["letter"]["truncated"] = true.into(),
        "a requeue made on the truncated input `letter` is refused",
    );
    check(
        |_, _| Ok(Decision::requeue("faxes", "print", json!({ "jobId": "7" }), Options::new())),
        |_| (),
        "queue `faxes` is not declared",
    );
    check(
        |_, _| Ok(Decision::requeue("printing", "print", json!({ "jobId": 8 }), Options::new())),
        |_| (),
        "data key \"jobId\" does not carry the job's id \"7\"",
    );
    check(|_, _| Ok(Decision::fail(" ")), |_| (), "the fail has no reason; write a sentence that says why");
}

#[test]
fn an_id_may_be_a_number_where_the_host_takes_one() {
    let failures = failures(
        |_, _| Ok(Decision::requeue("printing", "print", json!({ "jobId": 7 }), Options::new())),
        |case| case["expected"]["data"] = json!({ "jobId": 7 }),
    );
    assert_eq!(failures, [""; 0]);
}

#[test]
fn faults_of_a_manifest_are_named() {
    const QUEUE: QueueRule = QueueRule::new("q", "fixed", "", JobNames::Any);
    const READ: Read = Read { columns: &[], limit: 0, ..MANIFEST.sources[0].reads[0] };
    const SOURCE: Source = Source {
        job_types: &[JobType::restart_safe("a"), JobType::not_restart_safe("a")],
        table: Table { job_type: None, ..MANIFEST.sources[0].table },
        queues: &[QUEUE],
        reads: &[READ],
        ..MANIFEST.sources[0]
    };
    let faults = rules::manifest_faults(&Manifest { sources: &[SOURCE, SOURCE], ..MANIFEST });
    let expected = [
        "source `printing` is declared twice",
        "source `printing`: several job types, but the table has no type column",
        "source `printing`: job type `a` is declared twice",
        "source `printing`: queue `q`: job id `fixed` must contain {id} once",
        "source `printing`: queue `q`: no payload key",
        "source `printing`: read `letter`: no column",
        "source `printing`: read `letter`: limit is 0",
    ];
    assert_eq!(faults[..expected.len()], expected);
}
