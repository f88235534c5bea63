#!lua flags=no-writes
-- Counts the messages of a shard that are due between each two moments.
--
-- KEYS  1 due (zset)
-- ARGV  moments (Unix ms), ascending
-- Returns  one number for each moment but the last: how many are due from there to before the next
local DUE = KEYS[1]
local reply = {}
for at = 1, #ARGV - 1 do reply[at] = redis.call('ZCOUNT', DUE, ARGV[at], '(' .. ARGV[at + 1]) end
return reply
