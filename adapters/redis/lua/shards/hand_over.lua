#!lua flags=allow-oom
-- The caller stops draining a shard, so that the next instance need not wait for the time limit.
--
-- KEYS  1 drain (string: who drains)
-- ARGV  1 instance   2 wake channel
-- Returns  1 when it was the caller's, else 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[2], '0')
return 1
