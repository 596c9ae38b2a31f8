-- Gives a lease back, if it is still the owner's.
--
-- KEYS[1]  the lease
-- ARGV[1]  the owner's token
-- returns  1 if the lease was the owner's and is gone now, 0 if it was not
--
-- A lease of another owner, and a key that is no string, are left untouched.

if redis.call('TYPE', KEYS[1]).ok == 'string' and redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
