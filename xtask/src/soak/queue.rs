//! Looking into BullMQ's keys, and taking entries out of them, each at one instant.

/// Lists what waits, runs or is due. Arguments: the queues. One line an entry, its fields separated by tabs: queue, state,
/// entry id, `data.jobId`, and of a delayed one BullMQ's score, from which it is told when it is due.
pub(super) const ENTRIES_LUA: &str = r"
local found = {}
local function add(queue, state, id, score)
  if string.sub(id, 1, 2) ~= '0:' then
    local data = redis.call('HGET', 'bull:' .. queue .. ':' .. id, 'data')
    local job = data and tostring(cjson.decode(data).jobId) or ''
    found[#found + 1] = table.concat({queue, state, id, job, score}, '\t')
  end
end
for _, queue in ipairs(ARGV) do
  for _, state in ipairs({'wait', 'paused', 'active'}) do
    for _, id in ipairs(redis.call('LRANGE', 'bull:' .. queue .. ':' .. state, 0, -1)) do add(queue, state, id, '') end
  end
  for _, state in ipairs({'delayed', 'prioritized', 'waiting-children'}) do
    local pairs = redis.call('ZRANGE', 'bull:' .. queue .. ':' .. state, 0, -1, 'WITHSCORES')
    for at = 1, #pairs, 2 do add(queue, state, pairs[at], pairs[at + 1]) end
  end
end
return found";

/// Loses one entry that waits or is due, if it still does. Arguments: queue, entry id, `1` to lose its hash as well.
/// The entry's `data.jobId`, or nothing. What a worker has begun is left alone.
pub(super) const LOSE_WAITING_LUA: &str = r"
local queue, id, whole = 'bull:' .. ARGV[1], ARGV[2], ARGV[3] == '1'
local data = redis.call('HGET', queue .. ':' .. id, 'data')
if redis.call('LREM', queue .. ':wait', 0, id) + redis.call('ZREM', queue .. ':delayed', id) == 0 then return '' end
if whole then redis.call('DEL', queue .. ':' .. id) end
return cjson.decode(data).jobId";

/// Loses one entry that a dead worker has left active, if it is still there. Arguments: queue, entry id. How many were lost.
pub(super) const LOSE_ACTIVE_LUA: &str = r"
local queue, id = 'bull:' .. ARGV[1], ARGV[2]
local lost = redis.call('LREM', queue .. ':active', 0, id)
if lost == 1 then
  redis.call('DEL', queue .. ':' .. id, queue .. ':' .. id .. ':lock')
  redis.call('SREM', queue .. ':stalled', id)
end
return lost";

/// BullMQ's score of a delayed entry: the time when it is due, times this, plus a counter.
const SCORE_PER_MS: f64 = 4096.0;

/// One entry in a queue.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) queue: String,
    /// `wait`, `active`, `delayed`, …
    pub(super) state: String,
    pub(super) id: String,
    /// The row's id.
    pub(super) job: String,
    /// When a delayed one is due, in milliseconds since 1970.
    pub(super) due_ms: Option<f64>,
}

impl Entry {
    /// `None` of a line of another shape, such as that of an empty list.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [queue, state, id, job, score] = fields[..] else { return None };
        let due_ms = (state == "delayed").then(|| score.parse::<f64>().ok()).flatten();
        let [queue, state, id, job] = [queue, state, id, job].map(str::to_owned);
        Some(Self { queue, state, id, job, due_ms: due_ms.map(|score| score / SCORE_PER_MS) })
    }
}

#[cfg(test)]
mod tests {
    use super::Entry;

    #[test]
    fn a_delayed_entry_says_when_it_is_due_and_an_empty_list_holds_none() {
        let delayed = Entry::parse("narration\tdelayed\tn1\tn1\t8192000").expect("an entry");
        assert_eq!((delayed.job.as_str(), delayed.due_ms), ("n1", Some(2_000.0)));
        let active = Entry::parse("narration\tactive\tn1\tn1\t").expect("an entry");
        assert_eq!((active.state.as_str(), active.due_ms), ("active", None));
        assert_eq!(Entry::parse(""), None);
    }
}
