//! What it does.

use std::hint::black_box;
use std::io::{Read, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::manifest::{Told, decides, told};

#[allow(unreachable_pub, missing_docs, clippy::all, reason = "generated code")]
mod bindings {
    wit_bindgen::generate!({
        path: "../../wit/v0.1",
        world: "handler",
        additional_derives: [serde::Deserialize],
    });
}

use bindings::exports::salvage::handler::domain::{Decision, Guest, HandlerManifest, Input, Job};
use bindings::salvage::handler::host_log::{Level, log};
pub(crate) use bindings::salvage::handler::types;

struct Hostile;

bindings::export!(Hostile with_types_in bindings);

impl Guest for Hostile {
    fn describe() -> HandlerManifest {
        match told() {
            Told::Declare(manifest) => manifest,
            Told::Behave { describe } if describe == "huge" => HandlerManifest {
                domain: "huge".to_owned(),
                description: "x".repeat(8 << 20),
                sources: Vec::new(),
            },
            Told::Behave { describe } => panic!("described as {:?}", misbehave(&describe)),
        }
    }

    fn decide(job: Job, inputs: Vec<Input>) -> Result<Decision, String> {
        if let Some(decides) = decides() {
            return decided(&decides, &job.id);
        }
        match job.id.as_str() {
            "echo" => Ok(Decision::Fail(format!("{job:?} {inputs:?}"))),
            "undeclared-queue" => Ok(Decision::Requeue(types::Requeue {
                queue: "of-another-domain".to_owned(),
                name: "x".to_owned(),
                data: r#"{"jobId":"undeclared-queue"}"#.to_owned(),
                options: "{}".to_owned(),
            })),
            id => misbehave(id),
        }
    }
}

/// The decision that the test wrote beside the manifest.
fn decided(decides: &Value, id: &str) -> Result<Decision, String> {
    let text = decides.to_string().replace("{id}", id);
    let decides: Value = serde_json::from_str(&text).expect("an id without quotes");
    let reason = |kind: &str| decides[kind].as_str().map(str::to_owned);
    if let Some(reason) = reason("fail") {
        return Ok(Decision::Fail(reason));
    }
    if let Some(reason) = reason("hold") {
        return Ok(Decision::Hold(reason));
    }
    let requeue = &decides["requeue"];
    Ok(Decision::Requeue(types::Requeue {
        queue: requeue["queue"].as_str().expect("a queue").to_owned(),
        name: requeue["name"].as_str().expect("a job name").to_owned(),
        data: requeue["data"].to_string(),
        options: requeue["options"]
            .as_object()
            .map_or_else(|| "{}".to_owned(), |_| requeue["options"].to_string()),
    }))
}

/// The behaviours, `NAME` or `NAME:COUNT`. A plain number is a job that can be judged, but for `3`.
fn misbehave(id: &str) -> Result<Decision, String> {
    let (name, count) = id.split_once(':').unwrap_or((id, "0"));
    let count: usize = count.parse().expect("a count");
    let hold = |reason: String| Ok(Decision::Hold(reason));
    match name {
        "3" => panic!("cannot judge job {name}"),
        "loop" => loop {
            black_box(());
        },
        // Fails with a reason that would have its say about the terminal, and says nothing.
        "ugly" => Ok(Decision::Fail(format!("\u{1b}[31mbad\u{7}\nnews \u{202e}{}", "x".repeat(count)))),
        "mute" => Ok(Decision::Fail("\u{1b}\u{202e} \n".to_owned())),
        "odd-options" => Ok(Decision::Requeue(types::Requeue {
            queue: "slide-generation".to_owned(),
            name: "x".to_owned(),
            data: r#"{"jobId":"odd-options"}"#.to_owned(),
            options: r#"{"removeOnComplete":{"age":-1,"count":"x"},"backoff":{"type":"spring"}}"#.to_owned(),
        })),
        // Says so before it works.
        "begin" => {
            log(Level::Info, "begins to work");
            misbehave(&format!("work:{count}"))
        }
        // Runs for a time that grows with the count, and answers.
        "work" => hold(format!("{}", (0..count as u64).fold(0, |sum, n| black_box(sum ^ n)))),
        "sleep" => {
            std::thread::sleep(Duration::from_secs(3_600));
            hold("slept".to_owned())
        }
        "grow" => {
            let block = vec![1_u8; count];
            hold(format!("{}", black_box(&block).len()))
        }
        "grow-forever" => {
            let mut blocks = Vec::new();
            loop {
                blocks.push(black_box(vec![1_u8; 1 << 20]));
            }
        }
        "recurse" => hold(format!("{}", recurse(1))),
        "answer" => hold("x".repeat(count)),
        "error" => Err("x".repeat(count)),
        "stdout" => write_lines(&mut std::io::stdout(), count),
        "stderr" => write_lines(&mut std::io::stderr(), count),
        "log" => {
            let line = "0123456789abcde\n".repeat(64);
            for _ in 0..count / line.len() {
                log(Level::Info, &line);
            }
            hold("logged".to_owned())
        }
        "log-once" => {
            log(Level::Error, &"y".repeat(count));
            hold("logged".to_owned())
        }
        "exit" => std::process::exit(7),
        "trap" => core::arch::wasm32::unreachable(),
        "world" => hold(world()),
        _ => hold(format!("job {name}")),
    }
}

/// Needs stack at each step.
#[expect(unconditional_recursion, reason = "it is to run out of stack")]
#[inline(never)]
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    frame[0] + recurse(black_box(depth + 1)) + frame[63]
}

fn write_lines(to: &mut dyn Write, count: usize) -> Result<Decision, String> {
    let line = [b'z'; 4_096];
    for _ in 0..count / line.len() {
        to.write_all(&line).map_err(|error| error.to_string())?;
    }
    Ok(Decision::Hold("written".to_owned()))
}

/// Everything a guest can learn of where it runs.
fn world() -> String {
    let began = Instant::now();
    let mut input = Vec::new();
    let stdin = std::io::stdin().read_to_end(&mut input).map_err(|error| error.kind());
    let hashed = std::collections::hash_map::RandomState::new();
    let file = std::fs::read("/etc/passwd").map(|bytes| bytes.len()).map_err(|error| error.kind());
    let write = std::fs::write("/tmp/hostile", "x").is_ok();
    let network = std::net::TcpStream::connect(("127.0.0.1", 80)).is_ok();
    let bound = std::net::UdpSocket::bind(("127.0.0.1", 0)).is_ok();
    let name = std::net::ToSocketAddrs::to_socket_addrs(&("localhost", 80)).is_ok();
    format!(
        "vars {:?} args {:?} stdin {stdin:?} {input:?} file {file:?} write {write} network {network} bound {bound} \
         name {name} since 1970 {:?} elapsed {:?} random {:x}",
        std::env::vars().collect::<Vec<_>>(),
        std::env::args().collect::<Vec<_>>(),
        SystemTime::now().duration_since(UNIX_EPOCH),
        began.elapsed(),
        std::hash::BuildHasher::hash_one(&hashed, 1),
    )
}
