#!lua flags=allow-oom
-- An instance reports that it is running and its health (or, with 0 ms, that it leaves). It learns who else reports.
-- The clock may step, so the caller decides by its own who still runs (bridge/core/roll.py).
--
-- KEYS  1 instances (zset instance -> ms until which it counts as running)
--       2 health (hash instance -> 1 or 0 (can it deliver), then JSON)   3 orders (hash route -> JSON)
--       4 store (hash)   5 lost (hash instance -> Unix ms at which it was removed, and its size)
--       6 sizes (hash instance -> how many were listed at its last report, with itself)
-- ARGV  1 instance   2 ms   3 health: 1 or 0, then JSON
--       then pairs: an instance that the caller counts as dead, its score; one with another score now is kept
-- Returns  {now us; instance, score, 1 or 0 (can it deliver), instance, ...; route, order, route, order, ...}
--- @include include/now
local INSTANCES, HEALTH, ORDERS, STORE, LOST, SIZES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
-- As long as bridge/desk/numbers.py shows a loss.
local SHOWN_MS = 3600000
local instance, ttl_ms, health = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local now = now_us()
local now_ms = math.floor(now / 1000)
local before = redis.call('ZCARD', INSTANCES)
for at = 4, #ARGV, 2 do
  if ARGV[at] ~= instance and redis.call('ZSCORE', INSTANCES, ARGV[at]) == ARGV[at + 1] then
    redis.call('ZREM', INSTANCES, ARGV[at])
    redis.call('HDEL', HEALTH, ARGV[at])
    redis.call('HINCRBY', STORE, 'instances_lost', 1)
    local size = redis.call('HGET', SIZES, ARGV[at]) or before -- another version keeps no size
    redis.call('HDEL', SIZES, ARGV[at])
    redis.call('HSET', LOST, ARGV[at], string.format('%d %d', now_ms, size))
  end
end
if ttl_ms > 0 then
  redis.call('ZADD', INSTANCES, now_ms + ttl_ms, instance)
  redis.call('HSET', HEALTH, instance, health)
  redis.call('HSET', SIZES, instance, redis.call('ZCARD', INSTANCES))
else
  redis.call('ZREM', INSTANCES, instance)
  redis.call('HDEL', HEALTH, instance)
  redis.call('HDEL', SIZES, instance)
end
-- A loss is over when the instance reports again, or another one took its place.
local listed_now, losses = redis.call('ZCARD', INSTANCES), redis.call('HGETALL', LOST)
for at = 1, #losses, 2 do
  local lost_ms, size = string.match(losses[at + 1], '^(%d+) (%d+)$')
  if losses[at] == instance or listed_now >= tonumber(size) or now_ms - tonumber(lost_ms) >= SHOWN_MS then
    redis.call('HDEL', LOST, losses[at])
  end
end
local beats, listed = {}, redis.call('ZRANGE', INSTANCES, 0, -1, 'WITHSCORES')
for at = 1, #listed, 2 do
  beats[#beats + 1] = listed[at]
  beats[#beats + 1] = tonumber(listed[at + 1])
  beats[#beats + 1] = string.sub(redis.call('HGET', HEALTH, listed[at]) or '', 1, 1) == '1' and 1 or 0
end
return {now, beats, redis.call('HGETALL', ORDERS)}
