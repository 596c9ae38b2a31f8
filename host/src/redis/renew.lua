-- Lets a lease begin anew, if it is still the owner's.
--
-- KEYS[1]  the lease
-- ARGV[1]  the owner's token
-- ARGV[2]  time to live from now, milliseconds
-- returns  1 if the lease is the owner's and lives that long from now, 0 if it is not the owner's
--
-- A lease of another owner, and a key that is no string, are left untouched. An expired lease is not taken again:
-- another host may have worked meanwhile.

if redis.call('TYPE', KEYS[1]).ok == 'string' and redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
