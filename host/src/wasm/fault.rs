//! How a call that did not come back is put into words.

use salvage_core::decision::shorten;
use wasmtime::{Trap, WasmBacktrace};

use super::limits::{Limits, OverMemory, OverOutput, OverTime};
use super::store::State;
use crate::ports::HandlerFault;

/// What ended the call. Our own errors come out of the engine as they went in; everything else is a trap.
pub(super) fn of(error: &wasmtime::Error, state: &State, limits: &Limits) -> HandlerFault {
    if error.is::<OverTime>() {
        over_time(limits)
    } else if let Some(over) = error.downcast_ref::<OverMemory>() {
        HandlerFault::Memory { wanted: over.wanted, limit: over.limit }
    } else if let Some(over) = error.downcast_ref::<OverOutput>() {
        HandlerFault::Output { bytes: over.bytes, limit: over.limit }
    } else {
        let message = last_words(&state.stderr.tail()).unwrap_or_else(|| engine_words(error));
        HandlerFault::Trap { message: shorten(&message) }
    }
}

/// The call took too long.
pub(super) fn over_time(limits: &Limits) -> HandlerFault {
    HandlerFault::Timeout { limit_ms: u64::try_from(limits.run_time.as_millis()).unwrap_or(u64::MAX) }
}

/// The outermost line of the engine's chain. The others repeat it in the engine's own terms.
pub(super) fn first_line(error: &wasmtime::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// What all of the chain comes from, where its outermost line only says what was being done.
pub(super) fn root_line(error: &wasmtime::Error) -> String {
    error.root_cause().to_string().lines().next().unwrap_or_default().to_owned()
}

/// What the guest wrote before it died: a panic's place and message if there is one, else its last line.
fn last_words(stderr: &str) -> Option<String> {
    let Some(at) = stderr.rfind("panicked at ") else {
        let line = stderr.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        return Some(line.to_owned());
    };
    let lines = stderr[at..].lines().take_while(|line| !line.starts_with("note: run with"));
    Some(lines.map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" "))
}

/// The engine's words without its backtrace, and where the guest was.
fn engine_words(error: &wasmtime::Error) -> String {
    let backtrace = error.downcast_ref::<WasmBacktrace>();
    let Some(trap) = error.downcast_ref::<Trap>() else {
        // A backtrace stands before what caused it.
        return if backtrace.is_some() { root_line(error) } else { first_line(error) };
    };
    let mut words = trap.to_string();
    if *trap == Trap::MemoryOutOfBounds {
        // A Rust guest's stack lies below its data and runs out of the memory's lower end.
        words.push_str(" (deep recursion ends like this, too)");
    }
    let words = words.strip_prefix("wasm trap: ").unwrap_or(&words);
    match backtrace.and_then(|backtrace| backtrace.frames().first()?.func_name()) {
        Some(function) => format!("{words} in {:#}", rustc_demangle::demangle(function)),
        None => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::last_words;

    fn check(stderr: &str, expected: Option<&str>) {
        assert_eq!(last_words(stderr).as_deref(), expected, "{stderr:?}");
    }

    #[test]
    fn last_words_are_the_panic_or_the_last_line() {
        check("", None);
        check("\n \n", None);
        check("starting\nTypeError: x is undefined\n", Some("TypeError: x is undefined"));
        check(
            "starting\n\nthread '<unnamed>' (1) panicked at src/lib.rs:3:5:\nno deck\nfor it\n\
             note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
            Some("panicked at src/lib.rs:3:5: no deck for it"),
        );
    }
}
