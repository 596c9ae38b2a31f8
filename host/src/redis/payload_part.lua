-- Reads a part of one payload that is too long to be read at once.
--
-- KEYS[1]   hash of the entry
-- ARGV[1]   first byte of the part, counted from 1
-- ARGV[2]   its last byte
-- ARGV[3]   length of the whole payload, as it was told
--
-- returns {length, digest, part}: the digest is that of the whole payload, so that parts of two payloads are never taken
-- for one. If the length is another one now, or the key is no hash any more: {length}. Nothing is written.
--
-- Redis copies the whole payload a few times within its memory to give out a part of it, and frees the copies before it
-- does anything else.

local length = redis.pcall('HSTRLEN', KEYS[1], 'data')
if type(length) ~= 'number' then
  if not string.find(length.err, 'WRONGTYPE', 1, true) then
    return length
  end
  return { 0 }
end
if length ~= tonumber(ARGV[3]) then
  return { length }
end
local data = redis.call('HGET', KEYS[1], 'data')
local answer = { length, redis.sha1hex(data), string.sub(data, tonumber(ARGV[1]), tonumber(ARGV[2])) }
data = nil
-- Otherwise Lua would keep the copy for as long as it does not need the room for something else.
pcall(function() collectgarbage() end)
return answer
