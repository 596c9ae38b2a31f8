//! Each way a call can end, on a real component: a typed outcome, and nothing else is harmed.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use salvage::ports::HandlerFault;
use salvage::wasm::{Limits, Registry};
use salvage_core::decision::Decision;
use salvage_core::sighting::Residue;
use serde_json::json;

use crate::wasm_fixtures::*;

const MIB: u64 = 1024 * 1024;

/// With time enough for what is not about time.
async fn unhurried() -> Registry {
    hostile_within(&patient()).await
}

fn trap(ended: Result<Decision, HandlerFault>) -> String {
    match ended {
        Err(HandlerFault::Trap { message }) => message,
        other => panic!("expected a trap, found {other:?}"),
    }
}

fn held(text: &str) -> Result<Decision, HandlerFault> {
    Ok(Decision::Hold(text.to_owned()))
}

#[tokio::test]
async fn an_endless_loop_ends_at_its_limit() {
    let registry = hostile_within(&Limits::default()).await;
    let answer = Orphan::new(&registry, "hostile", "loop").ask(&registry).await;
    assert_eq!(answer.decision, Err(HandlerFault::Timeout { limit_ms: 100 }));
    let usage = answer.usage.expect("it was called");
    assert_eq!(usage.run_time_us.limit, 100_000);
    assert!(usage.run_time_us.used >= 100_000, "it has its budget: {usage:?}");
    assert_eq!(ask(&registry, "1").await, held("job 1"), "the next call is not harmed");
}

#[tokio::test]
async fn a_guest_asleep_in_a_host_call_ends_too() {
    let registry = hostile_within(&Limits { run_time: Duration::from_millis(20), ..Limits::default() }).await;
    assert_eq!(ask(&registry, "sleep").await, Err(HandlerFault::Timeout { limit_ms: 20 }));
}

/// On one thread, so that the two share it: the worker needs longer than its budget by the clock on the wall.
#[tokio::test(flavor = "current_thread")]
async fn a_neighbour_of_an_endless_loop_keeps_its_full_budget() {
    let registry = unhurried().await;
    let work = |count: u64| Orphan::new(&registry, "hostile", &format!("work:{count}"));
    let mut count = 1 << 20;
    let alone = loop {
        let took = work(count).ask(&registry).await.usage.expect("it was called").took();
        if took > Duration::from_millis(50) {
            break took;
        }
        count *= 2;
    };
    let limits = Limits { run_time: alone * 3, ..Limits::default() };
    let registry = hostile_within(&limits).await;
    let endless = Orphan::new(&registry, "hostile", "loop");
    let worker = work(count);
    let (endless, worker) = tokio::join!(endless.ask(&registry), worker.ask(&registry));
    assert!(matches!(endless.decision, Err(HandlerFault::Timeout { .. })), "{endless:?}");
    assert!(worker.decision.is_ok(), "{worker:?} beside an endless loop, {alone:?} alone");
}

/// H12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_spinning_guests_on_two_threads_all_end_in_time() {
    let registry = Arc::new(hostile_within(&Limits::default()).await);
    let began = Instant::now();
    let spinning: Vec<_> = (0..4)
        .map(|_| {
            let registry = Arc::clone(&registry);
            tokio::spawn(async move { ask(&registry, "loop").await })
        })
        .collect();
    for guest in spinning {
        let ended = guest.await.expect("no panic");
        assert_eq!(ended, Err(HandlerFault::Timeout { limit_ms: 100 }));
    }
    // 200 ms on an idle machine.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn memory_without_end_is_refused_with_wish_and_limit() {
    let registry = unhurried().await;
    let Err(HandlerFault::Memory { wanted, limit }) = ask(&registry, "grow-forever").await else {
        panic!("expected a memory fault")
    };
    assert_eq!(limit, 64 * MIB);
    assert!(wanted > limit && wanted < limit + 4 * MIB, "{wanted}");
    let Err(HandlerFault::Memory { wanted, .. }) = ask(&registry, &format!("answer:{}", 1 << 30)).await
    else {
        panic!("expected a memory fault")
    };
    assert!(wanted > 1 << 30, "an answer of 1 GiB: {wanted}");
    assert_eq!(ask(&registry, &format!("grow:{}", 40 * MIB)).await, held("41943040"));
}

/// What is kept of a call beside its decision.
#[tokio::test]
async fn a_call_tells_what_it_used_of_each_limit_and_what_it_wanted_beyond() {
    let registry = unhurried().await;
    let usage = async |id: &str| {
        Orphan::new(&registry, "hostile", id).ask(&registry).await.usage.expect("it was called")
    };
    let modest = usage("1").await;
    assert_eq!([modest.memory.limit, modest.output.limit, modest.log.limit], [64 * MIB, MIB, MIB / 16]);
    assert!(modest.memory.used > MIB && modest.memory.used < 4 * MIB, "{modest:?}");
    assert_eq!((modest.output.used, modest.log.used), ("job 1".len() as u64, 0));
    let greedy = usage("grow-forever").await;
    assert!(greedy.memory.used > greedy.memory.limit, "{greedy:?}");
    let answered = usage(&format!("answer:{}", 2 * MIB)).await;
    assert!(answered.output.used >= 2 * MIB, "{answered:?}");
    let flood = usage(&format!("log:{MIB}")).await;
    assert!(flood.log.used > flood.log.limit, "{flood:?}");
}

/// H2.
#[tokio::test]
async fn the_sum_of_two_memories_counts() {
    let file = with_further_memory(hostile(), 127);
    let folder = Folder::of(&[("two.wasm", file)]);
    let limits = Limits { memory: 16 * MIB, ..patient() };
    let registry = folder.load_within(&limits, Default::default(), &Default::default()).await;
    assert_eq!(ask(&registry, &format!("grow:{}", 4 * MIB)).await, held("4194304"));
    let both = ask(&registry, &format!("grow:{}", 10 * MIB)).await;
    let Err(HandlerFault::Memory { wanted, limit }) = both else {
        panic!("expected a memory fault: {both:?}")
    };
    assert!(limit == 16 * MIB && wanted > limit && wanted < 20 * MIB, "{wanted}");
}

#[tokio::test]
async fn a_panic_on_one_of_ten_jobs_costs_one_decision() {
    let registry = unhurried().await;
    let mut ended = Vec::new();
    for id in 1..=10 {
        ended.push(ask(&registry, &id.to_string()).await);
    }
    let trapped: Vec<usize> = (0..10).filter(|at| ended[*at].is_err()).collect();
    assert_eq!(trapped, [2]);
    assert_eq!(ended[9], held("job 10"));
    let message = trap(ended.swap_remove(2));
    insta::with_settings!({ filters => [(r"guest\.rs:\d+:\d+", "guest.rs:LINE")] }, {
        assert_snapshot!(message, @"panicked at tests/hostile/src/guest.rs:LINE: cannot judge job 3");
    });
}

#[tokio::test]
async fn a_trap_without_words_names_the_function() {
    let registry = unhurried().await;
    assert_snapshot!(trap(ask(&registry, "trap").await), @"wasm `unreachable` instruction executed in hostile_handlers::guest::misbehave");
    assert_snapshot!(trap(ask(&registry, "exit").await), @"Exited with i32 exit status 1");
}

#[tokio::test]
async fn deep_recursion_is_a_trap() {
    let registry = unhurried().await;
    assert_snapshot!(trap(ask(&registry, "recurse").await), @"out of bounds memory access (deep recursion ends like this, too) in hostile_handlers::guest::recurse");
}

/// H4.
#[tokio::test]
async fn an_answer_has_its_limit_and_stdout_and_stderr_have_theirs() {
    let registry = unhurried().await;
    let over = |bytes| Err(HandlerFault::Output { bytes, limit: MIB });
    assert_eq!(ask(&registry, &format!("answer:{}", MIB + 1)).await, over(MIB + 1));
    assert_eq!(ask(&registry, &format!("error:{}", 8 * MIB)).await, over(8 * MIB));
    assert!(ask(&registry, &format!("answer:{MIB}")).await.is_ok());
    assert_eq!(ask(&registry, &format!("stdout:{}", 1 << 30)).await, over(MIB + 4096));
    assert_eq!(ask(&registry, &format!("stderr:{}", 1 << 30)).await, over(MIB + 4096));
    assert_eq!(ask(&registry, &format!("stdout:{MIB}")).await, held("written"));
}

#[tokio::test]
async fn the_hosts_memory_stays_flat_under_floods() {
    let registry = unhurried().await;
    let before = peak_rss_kib();
    for _ in 0..10 {
        for id in ["answer:1073741824", "answer:16777216", "stdout:1073741824", "grow-forever"] {
            ask(&registry, id).await.expect_err("too much");
        }
        assert_eq!(ask(&registry, "log-once:33554432").await, held("logged"));
    }
    let grown = peak_rss_kib() - before;
    // Nobody but the guest holds its 64 MiB; the tests beside this one may run guests of their own.
    assert!(grown < 512 * 1024, "{grown} KiB more than before");
}

/// Most memory this process ever held.
fn peak_rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this system's process table");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

#[tokio::test]
async fn an_error_of_the_handler_is_passed_on_shortened() {
    let registry = unhurried().await;
    let Err(HandlerFault::Error(text)) = ask(&registry, "error:5000").await else {
        panic!("expected an error")
    };
    assert_eq!(text.chars().count(), 1_001);
}

#[tokio::test]
async fn a_handler_sees_an_empty_world_whose_clocks_stand_still() {
    let registry = unhurried().await;
    let seen = ask(&registry, "world").await;
    assert_eq!(seen, ask(&registry, "world").await, "the same in every store");
    let Ok(Decision::Hold(seen)) = seen else { panic!("{seen:?}") };
    assert_snapshot!(seen, @"vars [] args [] stdin Ok(0) [] file Err(NotFound) write false network false bound false name false since 1970 Ok(0ns) elapsed 0ns random 182e2c74c37b7090");
}

#[tokio::test]
async fn a_handler_is_told_all_of_the_question() {
    let registry = unhurried().await;
    let residue = Residue::Failed { finished_ms: 1, reason: Some("out of paper".to_owned()) };
    let orphan = Orphan::new(&registry, "hostile", "echo")
        .columns(&json!({ "deckId": "d1" }))
        .read("deck", &[json!({ "id": "d1" }), json!({ "id": "d2" })])
        .residue(residue);
    let Ok(Decision::Fail(told)) = orphan.ask(&registry).await.decision else { panic!("expected an echo") };
    assert_snapshot!(told, @r#"Job { domain: "hostile", source: "jobs", id: "echo", type: "ANY", status: "QUEUED", updated-at: "2026-01-31T09:00:00.123400Z", columns: "{\"deckId\":\"d1\"}", recoveries: 2, residue: Residue::Failed, failed-reason: Some("out of paper") } [Input { name: "deck", rows: ["{\"id\":\"d1\"}", "{\"id\":\"d2\"}"], truncated: false }]"#);
}

#[tokio::test]
async fn log_lines_carry_the_handlers_name_and_end_at_the_limit() {
    let written = Lines::default();
    let lines = written.clone();
    let subscriber =
        tracing_subscriber::fmt().with_writer(move || lines.clone()).with_ansi(false).without_time().finish();
    let registry = hostile_within(&Limits { log: 2_048 + 3, ..patient() }).await;
    let guard = tracing_subscriber::util::SubscriberInitExt::set_default(subscriber);
    assert_eq!(ask(&registry, "log:8192").await, held("logged"));
    assert_eq!(ask(&registry, "log-once:3").await, held("logged"));
    assert_eq!(ask(&registry, "log-once:30000000").await, held("logged"));
    drop(guard);
    let written = written.text();
    let short =
        written.replace(&"0123456789abcde ".repeat(64), "(1 KiB)").replace(&"y".repeat(2_051), "(limit)");
    assert_snapshot!(short, @r#"
     INFO salvage::handler: (1 KiB) handler.name="hostile"
     INFO salvage::handler: (1 KiB) handler.name="hostile"
     INFO salvage::handler: 012 handler.name="hostile"
     WARN salvage::handler: dropped 6141 bytes of log lines over the handler's limit handler.name="hostile" dropped_bytes=6141
    ERROR salvage::handler: yyy handler.name="hostile"
    ERROR salvage::handler: (limit) handler.name="hostile"
     WARN salvage::handler: dropped 29997949 bytes of log lines over the handler's limit handler.name="hostile" dropped_bytes=29997949
    "#);
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text")
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
