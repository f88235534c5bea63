#!lua flags=allow-oom
-- Adds to the counts of deliveries by route and lateness, in slots of 30 s and of an hour.
--
-- KEYS  1 slots of half a minute (hash)   2 slots of an hour (hash)
-- ARGV  1 ms to keep the first   2 ms to keep the second, then triples: field of the first, field of the second, number
-- Returns  nothing
local SLOTS, HOURS = KEYS[1], KEYS[2]
for at = 3, #ARGV, 3 do
  redis.call('HINCRBY', SLOTS, ARGV[at], ARGV[at + 2])
  redis.call('HINCRBY', HOURS, ARGV[at + 1], ARGV[at + 2])
end
redis.call('PEXPIRE', SLOTS, ARGV[1])
redis.call('PEXPIRE', HOURS, ARGV[2])
