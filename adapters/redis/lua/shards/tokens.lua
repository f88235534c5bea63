#!lua flags=allow-oom
-- Takes tokens from a bucket, which all instances share. It fills at a steady rate up to its size.
--
-- KEYS  1 rates (hash: route -> Unix µs at which the bucket would have been empty, had it only been filled since)
-- ARGV  1 route   2 microseconds for a token   3 size of the bucket in tokens   4 tokens wanted
-- Returns  the number of tokens taken
--- @include include/now
local RATES = KEYS[1]
local route, gap_us, size, wanted = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_us()
local empty = math.max(tonumber(redis.call('HGET', RATES, route) or 0), now - size * gap_us)
-- A bucket of a lower rate before may reach far ahead: it never keeps a route waiting for more than one bucket.
empty = math.min(empty, now + size * gap_us)
local taken = math.max(0, math.min(wanted, math.floor((now - empty) / gap_us + 0.000001)))
redis.call('HSET', RATES, route, string.format('%d', empty + taken * gap_us))
return taken
