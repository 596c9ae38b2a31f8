-- Writes a pass's nonce and generation into our own key of each queue, all or none.
--
-- KEYS[i]              `<prefix>:<queue>:salvage:host` of queue i
-- ARGV[1]              scope of the lease: 'global', or a domain
-- ARGV[2]              the pass's generation in that scope
-- ARGV[2i+1], [2i+2]   of queue i: its new nonce; the one that the look at it found, '' for none
-- returns              {'clear'}, or, with nothing written, {'fenced', i, generation found}, {'changed', i} or
--                      {'wrong-type', i}
--
-- A frozen host that wakes after a newer pass began gets 'fenced'. A Redis that was wiped, restored or swapped since the
-- look gets no nonce: it would vouch for what nobody has seen. The new nonce may be there already, if a reply was lost.
-- Fields of other scopes, and every key that is not ours, are left untouched.

local field = 'generation:' .. ARGV[1]
local nonce = ARGV[1] == 'global' and 'nonce' or 'nonce:' .. ARGV[1]
local generation = tonumber(ARGV[2])

for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'hash' and kind ~= 'none' then
    return {'wrong-type', i}
  end
  local found = redis.call('HGET', key, field)
  if found then
    local number = tonumber(found)
    if not number then
      return {'wrong-type', i}
    end
    if number > generation then
      return {'fenced', i, found}
    end
  end
  local holds = redis.call('HGET', key, nonce) or ''
  if holds ~= ARGV[2 * i + 1] and holds ~= ARGV[2 * i + 2] then
    return {'changed', i}
  end
end

for i, key in ipairs(KEYS) do
  redis.call('HSET', key, field, ARGV[2], nonce, ARGV[2 * i + 1])
end
return {'clear'}
