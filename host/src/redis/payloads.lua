-- Reads the payloads of the first of some entries: of as many as a page of bytes holds.
--
-- Why a script: a length is asked for before each payload, and nothing can change in between. Sent as single commands, a
-- page of large payloads would fill Redis's memory with replies before the client has read the first of them.
--
-- KEYS[i]   hash of entry i
-- ARGV[1]   bytes of payloads that are read however little memory Redis has left
-- ARGV[2]   most bytes of payloads in a page
-- ARGV[3]   beyond ARGV[1], a page takes at most this part (one in so many) of the memory that is left
-- ARGV[4]   bytes of a name that are told; of a longer one its beginning
--
-- returns {left, name, processedOn, data, length, name, processedOn, data, length, …}
--   left     bytes of memory that Redis has left below its limit; nil if that was not asked for, or is not known
--   then of each entry of the page, in the order of KEYS, its fields (nil if there are none) and the length of `data`.
--   The first entry is always among them; if its `data` alone is more than the page may hold, it is nil beside its length.
--   A key that is no hash has no fields. Nothing is written.

local sure, most, share, name_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
-- No number of milliseconds is longer.
local TIME_MAX = 32

local call = redis.call

local function memory_left()
  local info = redis.pcall('INFO', 'memory')
  if type(info) ~= 'string' then
    return false
  end
  local function bytes(name)
    return tonumber(string.match(info, '\n' .. name .. ':(%d+)'))
  end
  local used, limit = bytes('used_memory'), bytes('maxmemory')
  if limit == 0 then
    limit = bytes('total_system_memory')
  end
  return used and limit and math.max(limit - used, 0) or false
end

local room, spent, is_asked = sure, 0, false
local page, n = { false }, 1

-- Whether so many bytes more fit into the page. How much memory is left is asked once, when it begins to matter.
local function fits(bytes)
  if not is_asked and spent + bytes > room then
    local left = memory_left()
    page[1], is_asked = left, true
    room = left and math.max(sure, math.min(most, math.floor(left / share))) or sure
  end
  return spent + bytes <= room
end

-- A field of usual length, or its beginning; counted, for it was read whole.
local function short(field, max)
  if not field then
    return false
  end
  spent = spent + #field
  return #field > max and string.sub(field, 1, max) or field
end

for i = 1, #KEYS do
  local key = KEYS[i]
  local length = redis.pcall('HSTRLEN', key, 'data')
  if type(length) ~= 'number' then
    if not string.find(length.err, 'WRONGTYPE', 1, true) then
      return length
    end
    page[n + 1], page[n + 2], page[n + 3], page[n + 4] = false, false, false, 0
  else
    local is_read = fits(length)
    if not is_read and i > 1 then
      break
    end
    local fields = is_read and call('HMGET', key, 'name', 'processedOn', 'data')
      or call('HMGET', key, 'name', 'processedOn')
    spent = spent + length
    page[n + 1], page[n + 2] = short(fields[1], name_max), short(fields[2], TIME_MAX)
    page[n + 3], page[n + 4] = fields[3] or false, length
  end
  n = n + 4
end
return page
