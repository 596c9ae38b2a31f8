-- Puts a job back in its queue, or only proves that it is in no state of any of its queues.
--
-- Why not BullMQ's own `add`: with an id whose hash still exists (a retained or half-removed entry) it does nothing and
-- reports success. And it knows nothing of deadlines, generations and epochs.
--
-- A place is where an entry of the job would be: one of the queues of its source, and its id there.
--
-- KEYS[i]            `<prefix>:<queue>:salvage:host` of place i; all other keys begin with the same `<prefix>:<queue>:`
-- ARGV[1]            'enqueue' or 'probe'
-- ARGV[2]            scope of the lease: 'global', or a domain
-- ARGV[3]            the pass's generation in that scope
-- ARGV[4]            Redis time after which nothing is done any more, milliseconds since 1970
-- ARGV[4i+1..4i+4]   of place i: `<prefix>:<queue>:`; entry id; the scope's nonce that KEYS[i] must hold, or '' for any; '1' if
--                    `meta` must be there, or ''
-- then, to enqueue:  number of the place to enqueue at; job name; data (JSON); options (JSON, as BullMQ stores them);
--                    delay in milliseconds from now, Redis time; priority, 0 for none
--
-- returns {'clear'}: enqueued as `delayed`, or, for a probe, in no state of any place. Our generation is raised.
-- Otherwise, with nothing written, the first of these that holds (i: number of the place):
--   {'wrong-type', i, key}       a key is not what BullMQ writes
--   {'late'}                     the deadline has passed
--   {'fenced', i, generation}    a newer pass of the scope was here
--   {'epoch', i}                 our nonce is gone: Redis was wiped or restored
--   {'meta-missing', i}          `meta` is gone
--   {'paused', i}                (enqueue) resuming a paused queue may lose what was put into it meanwhile
--   {'present', i, state key}    the job is in a queue
--   {'locked', i}                a worker holds its lock
--   {'flow', i}                  (enqueue) what it left behind belongs to a flow
--   {'scheduler', i}             (enqueue) what it left behind belongs to a job scheduler
--
-- Redis does not take back what a script wrote before it failed. So everything is checked first, the first write is one
-- that a full or read-only Redis refuses, the entry becomes visible by the last write that may fail, and what follows
-- (marker, events) may fail without harm: an error reply means that nothing was enqueued.
--
-- Left untouched: `meta`; other entries; what the job left in places where it is not enqueued; a deduplication key that
-- belongs to another job.
--
-- The caller has read all ids of all places a moment ago, and the job was in no state. So only what came since has to be
-- found, and `wait` and `paused` are not walked to their ends for each act, which takes 40 ms at a million ids. What is
-- put into a list is put at one of its ends, so that is where we look, ENDS entries deep. It may have been pushed deeper
-- since; therefore a list is walked whole unless the job has no hash, or a hash that says that it is finished and is in a
-- finished set. BullMQ (4.x to 6.x) keeps to that: adding writes the hash; retrying a finished job takes it out of its set
-- and deletes `finishedOn`, in the script that puts it into the list; whatever else it puts there (promoted, stalled,
-- failed attempts, parents) was in another state before, so either the caller saw it or it was added since. Both marks are
-- asked for, because an add under an id whose hash was deleted by hand leaves the old entry in the set. What is missed is
-- an entry whose hash was deleted after it was added, or that somebody listed by hand, all since the caller's look, and
-- with ENDS others on either side by now. Time: O(ENDS + length of `active`), as a rule.
--
-- All keys must lie on one node; in a cluster they lie in one slot, by the hash tag of the prefix.

-- Only for entries without a hash does the number matter; both ends of a list are walked in less than 0.05 ms.
local ENDS = 1000

local mode, generation = ARGV[1], tonumber(ARGV[3])
local field = 'generation:' .. ARGV[2]
local nonce = ARGV[2] == 'global' and 'nonce' or 'nonce:' .. ARGV[2]

local LISTS = { 'wait', 'paused' }
local SETS = { 'delayed', 'prioritized', 'waiting-children' }
local FINISHED = { 'completed', 'failed' }
local FLOW_KEYS = { ':dependencies', ':processed', ':failed', ':unsuccessful' }

local enqueue
if mode == 'enqueue' then
  local at = 4 * #KEYS + 4
  enqueue = {
    place = tonumber(ARGV[at + 1]), name = ARGV[at + 2], data = ARGV[at + 3], options = ARGV[at + 4],
    delay = tonumber(ARGV[at + 5]), priority = ARGV[at + 6],
  }
end

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

-- Lua writes large numbers with an exponent, which Redis does not read as integers.
local function whole(number)
  return string.format('%.0f', number)
end

local wrong

local function is_wrong(i, key)
  wrong = wrong or { 'wrong-type', i, key }
end

-- The answer of a command that reads; nothing if the key is not what BullMQ writes, and then the first such key is kept.
-- Any other error is raised as it is.
local function read(i, command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then
    return redis.call(command, key, ...)
  end
  is_wrong(i, key)
end

-- The sets that hold the job.
local function holding(i, place, sets)
  local found = {}
  for _, set in ipairs(sets) do
    found[set] = read(i, 'ZSCORE', place.start .. set, place.id) and true
  end
  return found
end

local function place_at(i)
  local at = 4 * i
  local start, id = ARGV[at + 1], ARGV[at + 2]
  local place = { host = KEYS[i], start = start, id = id, hash = start .. id, lengths = {}, fields = {} }

  local ours = read(i, 'HMGET', place.host, field, nonce) or {}
  place.raised, place.is_of_epoch = ours[1], ARGV[at + 3] == '' or ours[2] == ARGV[at + 3]
  if place.raised and not tonumber(place.raised) then
    is_wrong(i, place.host)
  end
  local meta = read(i, 'HMGET', start .. 'meta', 'paused', 'opts.maxLenEvents') or {}
  place.is_paused, place.events_max = meta[1], meta[2]
  place.lacks_meta = ARGV[at + 4] == '1' and not (meta[1] or meta[2])
    and redis.call('EXISTS', start .. 'meta') == 0

  for _, list in ipairs(LISTS) do
    place.lengths[list] = read(i, 'LLEN', start .. list) or 0
  end
  place.is_active = read(i, 'LPOS', start .. 'active', id)
  place.sets = holding(i, place, SETS)
  place.has_hash = redis.call('EXISTS', place.hash) == 1
  if place.has_hash then
    local names = { 'finishedOn', 'parentKey', 'parent', 'rjk', 'deid' }
    local values = read(i, 'HMGET', place.hash, unpack(names)) or {}
    for n, name in ipairs(names) do
      place.fields[name] = values[n]
    end
  end
  place.finished = (place.has_hash or enqueue and enqueue.place == i) and holding(i, place, FINISHED) or {}
  return place
end

local places = {}
for i in ipairs(KEYS) do
  places[i] = place_at(i)
end

-- What else is written where the job is enqueued.
local due_marker
if enqueue then
  local start = places[enqueue.place].start
  due_marker = read(enqueue.place, 'ZSCORE', start .. 'marker', '1')
  local events = redis.call('TYPE', start .. 'events').ok
  if events ~= 'stream' and events ~= 'none' then
    is_wrong(enqueue.place, start .. 'events')
  end
  -- Few enough digits to stay exact when it is counted up.
  local counter = read(enqueue.place, 'GET', start .. 'id')
  if counter and not (string.match(counter, '^%d+$') and #counter <= 15) then
    is_wrong(enqueue.place, start .. 'id')
  end
end

local function late()
  if now > tonumber(ARGV[4]) then
    return { 'late' }
  end
end

local function fenced()
  for i, place in ipairs(places) do
    if place.raised and tonumber(place.raised) > generation then
      return { 'fenced', i, place.raised }
    end
  end
end

local function epoch()
  for i, place in ipairs(places) do
    if not place.is_of_epoch then
      return { 'epoch', i }
    end
  end
end

local function meta_missing()
  for i, place in ipairs(places) do
    if place.lacks_meta then
      return { 'meta-missing', i }
    end
  end
end

local function paused()
  if enqueue and places[enqueue.place].is_paused then
    return { 'paused', enqueue.place }
  end
end

-- Whether the job cannot have been put into a list since the caller looked, unless all of it is undone but the entry.
local function is_over(place)
  return not place.has_hash or place.fields.finishedOn and (place.finished.completed or place.finished.failed)
end

local function is_in_list(place, list)
  local key, length = place.start .. list, place.lengths[list]
  if length == 0 then
    return false
  end
  if length <= 2 * ENDS or not is_over(place) then
    return redis.call('LPOS', key, place.id)
  end
  return redis.call('LPOS', key, place.id, 'MAXLEN', ENDS)
    or redis.call('LPOS', key, place.id, 'RANK', -1, 'MAXLEN', ENDS)
end

local function present()
  for i, place in ipairs(places) do
    for _, list in ipairs(LISTS) do
      if is_in_list(place, list) then
        return { 'present', i, list }
      end
    end
    if place.is_active then
      return { 'present', i, 'active' }
    end
    for _, set in ipairs(SETS) do
      if place.sets[set] then
        return { 'present', i, set }
      end
    end
  end
end

local function locked()
  for i, place in ipairs(places) do
    if redis.call('EXISTS', place.hash .. ':lock') == 1 then
      return { 'locked', i }
    end
  end
end

local function bound()
  if not enqueue then
    return nil
  end
  for i, place in ipairs(places) do
    local keys = {}
    for n, ending in ipairs(FLOW_KEYS) do
      keys[n] = place.hash .. ending
    end
    if place.fields.parentKey or place.fields.parent or redis.call('EXISTS', unpack(keys)) > 0 then
      return { 'flow', i }
    end
    if string.sub(place.id, 1, 7) == 'repeat:' or place.fields.rjk then
      return { 'scheduler', i }
    end
  end
end

local refusal = wrong or late() or fenced() or epoch() or meta_missing() or paused() or present() or locked()
  or bound()
if refusal then
  return refusal
end

-- From here on something is written.

for _, place in ipairs(places) do
  redis.call('HSET', place.host, field, ARGV[3])
end
if not enqueue then
  return { 'clear' }
end

local place = places[enqueue.place]
local start, id, hash = place.start, place.id, place.hash

if place.fields.deid then
  local key = start .. 'de:' .. place.fields.deid
  if redis.call('TYPE', key).ok == 'string' and redis.call('GET', key) == id then
    redis.call('DEL', key)
  end
end
for _, set in ipairs(FINISHED) do
  redis.call('ZREM', start .. set, id)
end
redis.call('DEL', hash, hash .. ':logs')

-- Every add counts up, also one with an id of its own.
local counter = redis.call('INCR', start .. 'id')
redis.call('HSET', hash, 'name', enqueue.name, 'data', enqueue.data, 'opts', enqueue.options, 'timestamp', whole(now),
  'delay', whole(enqueue.delay), 'priority', enqueue.priority)
local due = now + enqueue.delay
-- BullMQ's score: the due millisecond, and 12 bits that keep those of one millisecond in order.
redis.call('ZADD', start .. 'delayed', whole(due * 4096 + counter % 4096), id)

-- Visible now: from here on nothing may raise an error.

local limit = place.events_max and string.match(place.events_max, '^%d+$') or '10000'
redis.pcall('XADD', start .. 'events', 'MAXLEN', '~', limit, '*', 'event', 'added', 'jobId', id, 'name', enqueue.name)
redis.pcall('XADD', start .. 'events', 'MAXLEN', '~', limit, '*', 'event', 'delayed', 'jobId', id, 'delay', whole(due))

-- Workers of BullMQ 5 and later sleep until the marker's time; without it they look again after 5 s at the latest.
if not due_marker or tonumber(due_marker) > due then
  redis.pcall('ZADD', start .. 'marker', whole(due), '1')
end
return { 'clear' }
