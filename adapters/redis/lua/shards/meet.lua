#!lua flags=allow-oom
-- An instance reports that it is running and its health (or, with 0 ms, that it leaves). It learns who else is running.
--
-- KEYS  1 instances (zset instance -> ms until which it counts as running)
--       2 health (hash instance -> 1 or 0 (can it deliver), then JSON)   3 orders (hash route -> JSON)
-- ARGV  1 instance   2 ms   3 health: 1 or 0, then JSON
-- Returns  {the running instances that can deliver, in alphabetical order; route, order, route, order, ...}
--- @include include/now
local INSTANCES, HEALTH, ORDERS = KEYS[1], KEYS[2], KEYS[3]
local instance, ttl_ms, health = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local now_ms = math.floor(now_us() / 1000)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', INSTANCES, '-inf', now_ms)) do
  redis.call('ZREM', INSTANCES, gone)
  redis.call('HDEL', HEALTH, gone)
end
if ttl_ms > 0 then
  redis.call('ZADD', INSTANCES, now_ms + ttl_ms, instance)
  redis.call('HSET', HEALTH, instance, health)
else
  redis.call('ZREM', INSTANCES, instance)
  redis.call('HDEL', HEALTH, instance)
end
local names = {}
for _, name in ipairs(redis.call('ZRANGE', INSTANCES, 0, -1)) do
  if string.sub(redis.call('HGET', HEALTH, name) or '', 1, 1) == '1' then names[#names + 1] = name end
end
table.sort(names)
return {names, redis.call('HGETALL', ORDERS)}
