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
-- belongs to another job. Time: O(length of the lists), for LPOS has to walk them to the end.
--
-- All keys must lie on one node; in a cluster they lie in one slot, by the hash tag of the prefix.

local mode, generation = ARGV[1], tonumber(ARGV[3])
local field = 'generation:' .. ARGV[2]
local nonce = ARGV[2] == 'global' and 'nonce' or 'nonce:' .. ARGV[2]

local STATES = {
  { 'wait', 'list' }, { 'paused', 'list' }, { 'active', 'list' },
  { 'delayed', 'zset' }, { 'prioritized', 'zset' }, { 'waiting-children', 'zset' },
}
local WRITTEN = {
  { 'completed', 'zset' }, { 'failed', 'zset' }, { 'id', 'string' }, { 'marker', 'zset' }, { 'events', 'stream' },
}
local FLOW_KEYS = { ':dependencies', ':processed', ':failed', ':unsuccessful' }

local places = {}
for i, host in ipairs(KEYS) do
  local at = 4 * i
  local start, id = ARGV[at + 1], ARGV[at + 2]
  places[i] = {
    host = host, start = start, id = id, hash = start .. id, nonce = ARGV[at + 3], needs_meta = ARGV[at + 4] == '1',
  }
end

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

local function is_a(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end

-- The first key that a command further down would trip over.
local function wrong_key(i, place)
  if not is_a(place.host, 'hash') then
    return place.host
  end
  local found = redis.call('HGET', place.host, field)
  if found and not tonumber(found) then
    return place.host
  end
  if not is_a(place.start .. 'meta', 'hash') then
    return place.start .. 'meta'
  end
  for _, state in ipairs(STATES) do
    if not is_a(place.start .. state[1], state[2]) then
      return place.start .. state[1]
    end
  end
  if not enqueue then
    return nil
  end
  if not is_a(place.hash, 'hash') then
    return place.hash
  end
  if i == enqueue.place then
    for _, key in ipairs(WRITTEN) do
      if not is_a(place.start .. key[1], key[2]) then
        return place.start .. key[1]
      end
    end
    -- Few enough digits to stay exact when it is counted up.
    local counter = redis.call('GET', place.start .. 'id')
    if counter and not (string.match(counter, '^%d+$') and #counter <= 15) then
      return place.start .. 'id'
    end
  end
end

local function wrong_type()
  for i, place in ipairs(places) do
    local key = wrong_key(i, place)
    if key then
      return { 'wrong-type', i, key }
    end
  end
end

local function late()
  if now > tonumber(ARGV[4]) then
    return { 'late' }
  end
end

local function fenced()
  for i, place in ipairs(places) do
    local found = redis.call('HGET', place.host, field)
    if found and tonumber(found) > generation then
      return { 'fenced', i, found }
    end
  end
end

local function epoch()
  for i, place in ipairs(places) do
    if place.nonce ~= '' and redis.call('HGET', place.host, nonce) ~= place.nonce then
      return { 'epoch', i }
    end
  end
end

local function meta_missing()
  for i, place in ipairs(places) do
    if place.needs_meta and redis.call('EXISTS', place.start .. 'meta') == 0 then
      return { 'meta-missing', i }
    end
  end
end

local function paused()
  if enqueue and redis.call('HEXISTS', places[enqueue.place].start .. 'meta', 'paused') == 1 then
    return { 'paused', enqueue.place }
  end
end

local function present()
  for i, place in ipairs(places) do
    for _, state in ipairs(STATES) do
      local look = state[2] == 'list' and 'LPOS' or 'ZSCORE'
      if redis.call(look, place.start .. state[1], place.id) then
        return { 'present', i, state[1] }
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
    local parent = redis.call('HMGET', place.hash, 'parentKey', 'parent')
    if parent[1] or parent[2] then
      return { 'flow', i }
    end
    for _, key in ipairs(FLOW_KEYS) do
      if redis.call('EXISTS', place.hash .. key) == 1 then
        return { 'flow', i }
      end
    end
    if string.sub(place.id, 1, 7) == 'repeat:' or redis.call('HEXISTS', place.hash, 'rjk') == 1 then
      return { 'scheduler', i }
    end
  end
end

local refusal = wrong_type() or late() or fenced() or epoch() or meta_missing() or paused() or present() or locked()
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

local deduplication = redis.call('HGET', hash, 'deid')
if deduplication then
  local key = start .. 'de:' .. deduplication
  if redis.call('TYPE', key).ok == 'string' and redis.call('GET', key) == id then
    redis.call('DEL', key)
  end
end
redis.call('ZREM', start .. 'completed', id)
redis.call('ZREM', start .. 'failed', id)
redis.call('DEL', hash, hash .. ':logs')

-- Every add counts up, also one with an id of its own.
local counter = redis.call('INCR', start .. 'id')
redis.call('HSET', hash, 'name', enqueue.name, 'data', enqueue.data, 'opts', enqueue.options, 'timestamp', whole(now),
  'delay', whole(enqueue.delay), 'priority', enqueue.priority)
local due = now + enqueue.delay
-- BullMQ's score: the due millisecond, and 12 bits that keep those of one millisecond in order.
redis.call('ZADD', start .. 'delayed', whole(due * 4096 + counter % 4096), id)

-- Visible now: from here on nothing may raise an error.

local limit = redis.pcall('HGET', start .. 'meta', 'opts.maxLenEvents')
if type(limit) ~= 'string' or not string.match(limit, '^%d+$') then
  limit = '10000'
end
redis.pcall('XADD', start .. 'events', 'MAXLEN', '~', limit, '*', 'event', 'added', 'jobId', id, 'name', enqueue.name)
redis.pcall('XADD', start .. 'events', 'MAXLEN', '~', limit, '*', 'event', 'delayed', 'jobId', id, 'delay', whole(due))

-- Workers of BullMQ 5 and later sleep until the marker's time; without it they look again after 5 s at the latest.
local marker = redis.pcall('ZSCORE', start .. 'marker', '1')
if type(marker) ~= 'string' or tonumber(marker) > due then
  redis.pcall('ZADD', start .. 'marker', whole(due), '1')
end
return { 'clear' }
