-- Reads the beginnings of one field of some hashes.
--
-- KEYS[i]   hash i
-- ARGV[1]   the field
-- ARGV[2]   bytes that are told of each
-- ARGV[3]   a field that is longer than this is not read
--
-- returns for each hash: the field, cut; nil if there is none, or the key is no hash; its length if it is not read. Nothing
-- is written.

local told, read_max = tonumber(ARGV[2]), tonumber(ARGV[3])
local answers = {}
for i = 1, #KEYS do
  local key = KEYS[i]
  local length = redis.pcall('HSTRLEN', key, ARGV[1])
  if type(length) ~= 'number' then
    if not string.find(length.err, 'WRONGTYPE', 1, true) then
      return length
    end
    answers[i] = false
  elseif length > read_max then
    answers[i] = length
  else
    local field = redis.call('HGET', key, ARGV[1])
    answers[i] = field and string.sub(field, 1, told)
  end
end
return answers
