//! The second sign of life: a candidate's own id in an entry that nobody else owns.
//!
//! A manifest can be wrong about where a payload holds the row's id, or about the form of an entry's id. The id itself
//! is then still there: as a value of the payload, as the job's name, or as a part of the entry's id. Such an entry may
//! be the candidate's job, whatever the manifest says, so the candidate is not absent.
//!
//! Ids of digits alone are in many payloads for other reasons (pages, users, years): in an entry that is foreign by its name
//! they count only where nothing confirms the declaration.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::candidate::Candidate;
use crate::naming::is_counted;

/// Parts of an entry's id that are looked at; a longer id has its first ones looked at.
const PARTS_MAX: usize = 32;

/// Where a candidate's id was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mention {
    /// The queue.
    pub queue: String,
    /// The entry.
    pub entry_id: String,
    /// The job's name, if it has one.
    pub name: Option<String>,
    /// What of the entry holds the id.
    pub place: Place,
}

/// What of an entry holds a candidate's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The payload, at this path.
    Payload(String),
    /// The job's name.
    Name,
    /// The entry's id.
    EntryId,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload(path) if path.is_empty() => f.write_str("as its payload"),
            Self::Payload(path) => write!(f, "in its payload at `{path}`"),
            Self::Name => f.write_str("as its job name"),
            Self::EntryId => f.write_str("in its id"),
        }
    }
}

/// Finds candidates by an id that stands somewhere.
#[derive(Debug, Default)]
pub(crate) struct Mentions<'a> {
    /// The first candidate of an id.
    first: HashMap<Cow<'a, str>, usize>,
    /// Of each candidate, the next one with the same id, of another source.
    next: BTreeMap<usize, usize>,
    /// Most parts that a candidate's id has.
    parts_max: usize,
    found: BTreeMap<usize, Mention>,
}

impl<'a> Mentions<'a> {
    /// Of these candidates, by position.
    pub(crate) fn of(candidates: impl Iterator<Item = (usize, &'a Candidate)>) -> Self {
        let mut mentions = Self::default();
        for (position, candidate) in candidates {
            let id = folded(&candidate.token.id);
            mentions.parts_max = mentions.parts_max.max(parts(&id).count());
            if let Some(before) = mentions.first.insert(id, position) {
                mentions.next.insert(position, before);
            }
        }
        mentions
    }

    /// The candidates whose id this text is, in any case of a UUID.
    pub(crate) fn named_by(&self, text: &str) -> impl Iterator<Item = usize> + '_ {
        let first = self.first.get(&folded(text)).copied();
        std::iter::successors(first, |position| self.next.get(position).copied())
    }

    /// The candidates whose id is a part of an entry's id, with no letter or digit on either side.
    pub(crate) fn in_entry_id(&self, entry_id: &str) -> Vec<usize> {
        let parts: Vec<(usize, usize)> = parts(entry_id).take(PARTS_MAX).collect();
        let mut found = vec![];
        for (at, (from, _)) in parts.iter().enumerate() {
            for (_, to) in parts[at..].iter().take(self.parts_max) {
                found.extend(self.named_by(&entry_id[*from..*to]));
            }
        }
        found
    }

    /// Takes in a mention. The first one of a candidate stays.
    pub(crate) fn take(&mut self, position: usize, mention: Mention) {
        self.found.entry(position).or_insert(mention);
    }

    pub(crate) fn get(&self, position: usize) -> Option<&Mention> {
        self.found.get(&position)
    }
}

/// Whether an id stands in payloads for many reasons: it counts only in entries that are not somebody else's.
pub(crate) fn is_common(id: &str) -> bool {
    is_counted(id)
}

/// A UUID in small letters with its hyphens, everything else as it is.
fn folded(text: &str) -> Cow<'_, str> {
    let is_one =
        matches!(text.len(), 32 | 36 | 38) && text.bytes().filter(u8::is_ascii_hexdigit).count() == 32;
    if !is_one {
        return Cow::Borrowed(text);
    }
    match uuid::Uuid::try_parse(text) {
        Ok(id) => Cow::Owned(id.hyphenated().to_string()),
        Err(_) => Cow::Borrowed(text),
    }
}

/// The runs of letters and digits of an id: where each begins and ends.
fn parts(id: &str) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = &id[at..];
        let from = at + rest.find(char::is_alphanumeric)?;
        let to = id[from..].find(|c: char| !c.is_alphanumeric()).map_or(id.len(), |length| from + length);
        at = to;
        Some((from, to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::candidate;

    fn check(id: &str, entry_id: &str, is_in: bool) {
        let candidates = [candidate(0, id)];
        let mentions = Mentions::of(candidates.iter().enumerate());
        assert_eq!(!mentions.in_entry_id(entry_id).is_empty(), is_in, "{id} in {entry_id}");
    }

    #[test]
    fn an_id_is_found_as_a_bounded_part_of_an_entrys_id() {
        check("a1", "email:a1", true);
        check("a1", "a1", true);
        check("a1", "x-a1-y", true);
        check("a1", "xa1", false);
        check("a1", "a12", false);
        check("deck-7", "slide_deck-7.pdf", true);
        check("deck-7", "slide_deck-72", false);
    }

    #[test]
    fn a_uuid_is_found_in_any_case_and_within_an_id() {
        let upper = "6F9619FF-8B86-D011-B42D-00CF4FC964FF";
        check(&upper.to_lowercase(), &format!("job-{upper}-retry"), true);
        let candidates = [candidate(0, &upper.to_lowercase())];
        let mentions = Mentions::of(candidates.iter().enumerate());
        assert_eq!(mentions.named_by(upper).collect::<Vec<_>>(), [0]);
        assert_eq!(mentions.named_by(&upper.replace('-', "")).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn candidates_of_several_sources_may_have_one_id() {
        let candidates = [candidate(0, "7"), candidate(1, "7"), candidate(1, "8")];
        let mentions = Mentions::of(candidates.iter().enumerate());
        let mut found: Vec<usize> = mentions.named_by("7").collect();
        found.sort_unstable();
        assert_eq!(found, [0, 1]);
    }
}
