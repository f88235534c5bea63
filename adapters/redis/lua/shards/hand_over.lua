#!lua flags=allow-oom
-- The caller stops draining a shard, so that the next instance need not wait for the time limit.
--
-- KEYS  1 drain (string: instance)
-- ARGV  1 instance   2 wake channel
-- Returns  1 if the caller drained it, else 0
local DRAIN = KEYS[1]
if redis.call('GET', DRAIN) ~= ARGV[1] then return 0 end
redis.call('DEL', DRAIN)
redis.call('PUBLISH', ARGV[2], '0')
return 1
