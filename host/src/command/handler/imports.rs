//! What a component that imports something finds there.

use std::collections::BTreeMap;

/// By the beginning of an import's name; the first that fits.
const FOUND: [(&str, &str); 12] = [
    ("salvage:handler/host-log", "lines of the host's log, under the handler's name"),
    ("salvage:handler/types", "words of the contract"),
    ("wasi:cli/stderr", "the last bytes are kept, for the message of a trap"),
    ("wasi:cli/stdout", "counted and dropped"),
    ("wasi:cli/stdin", "empty"),
    ("wasi:cli/environment", "no variables, no arguments"),
    ("wasi:cli/", "nothing: there is no process and no terminal"),
    ("wasi:clocks/", "denied: the time is always 1970-01-01T00:00:00Z"),
    ("wasi:filesystem/", "denied: there is no file"),
    ("wasi:random/", "denied: the numbers are always the same"),
    ("wasi:sockets/", "denied: there is no network"),
    ("wasi:io/", "streams and errors of the others"),
];

/// The imports by what they find, in the order of [`FOUND`].
pub(super) fn explained(imports: &[String]) -> Vec<(&'static str, Vec<&str>)> {
    let mut by_place: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for import in imports {
        if let Some(place) = FOUND.iter().position(|(prefix, _)| import.starts_with(prefix)) {
            by_place.entry(place).or_default().push(import);
        }
    }
    by_place.into_iter().map(|(place, names)| (FOUND[place].1, names)).collect()
}
