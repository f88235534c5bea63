#!lua flags=allow-oom
-- An instance says that it is there (or, with 0 ms, that it leaves) and how it is, and learns who else is.
--
-- KEYS  1 instances (zset instance -> ms until which it counts)   2 health (hash instance -> 1 or 0, can it deliver, and JSON)
-- ARGV  1 instance   2 ms   3 health: 1 or 0, and JSON
-- Returns  the instances that are there and can deliver, in alphabetical order
--- @include include/now
local now_ms = math.floor(now_us() / 1000)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms)) do
  redis.call('ZREM', KEYS[1], gone)
  redis.call('HDEL', KEYS[2], gone)
end
if tonumber(ARGV[2]) > 0 then
  redis.call('ZADD', KEYS[1], now_ms + tonumber(ARGV[2]), ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
end
local names = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if string.sub(redis.call('HGET', KEYS[2], name) or '', 1, 1) == '1' then names[#names + 1] = name end
end
table.sort(names)
return names
